/** The nightly run of real clients with their default settings, against a service of its own. */

import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { parse } from 'yaml'
import { ECHO_MODEL, startStack } from '../support/stack.ts'
import { AGENTS, type Agent } from './agents/agents.ts'
import { APIS, failuresOf } from './agents/check.ts'
import { ask, type Service } from './ask.ts'
import { CLIENTS, type Client } from './clients.ts'
import { cacheDirectory, openAgent, openEnvironment } from './environments.ts'
import { PAGE_KEY, PAGE_MODEL, readSnippets } from './page.ts'

const HELP = `Usage: test/clients/run [options]

Starts a service, and configures each client as docs/get-started/clients.md describes. Each client makes three calls: an answer without a
stream, a streamed answer, and a call with a tool. Each coding agent performs a task on scripted upstreams of all three APIs. Clients are
installed once, with pinned versions, below the cache directory. The agents take 1 GB.

  --only A,B     run only these clients and agents
  --model NAME   use this model of models.yaml instead of ${PAGE_MODEL}; the call with a tool is skipped, any text is accepted as the
                 answer, and no agent runs
  --cache DIR    directory of the installed clients (default: ${cacheDirectory()})
  --list         print the names of the clients
  --help         print this help

Set CLIENT_LOG=1 to print the output of the clients to standard error.
Exit code 0: all calls succeeded; 1: a call failed; 2: the calls could not run.
`

const FAILED = 'FAILED'

process.exit(await main())

async function main(): Promise<number> {
  try {
    const options = readOptions()
    if ('print' in options) {
      process.stdout.write(options.print)
      return 0
    }
    const { clients, agents, model, cache } = options
    await using stack = await startStack({ models: modelsFor(model), settings: { SLUICE_API_KEY: PAGE_KEY } })
    const rows: Row[] = []
    for (const client of clients) {
      const row = await rowOf(client, { url: stack.url, model }, cache)
      rows.push(row)
      process.stderr.write(`${client.name}: ${row.slice(1).join(', ')}\n`)
    }
    const agentRows = model === PAGE_MODEL ? await agentRowsOf(agents, cache) : []
    if (rows.length > 0) process.stdout.write(tableOf(['client', 'snippet', 'whole', 'streamed', 'tools'], rows))
    if (agentRows.length > 0) process.stdout.write(tableOf(['agent with model', ...APIS], agentRows))
    return [...rows, ...agentRows].every((row) => row.every((cell) => !cell.startsWith(FAILED))) ? 0 : 1
  } catch (error) {
    process.stderr.write(`The calls could not run: ${error instanceof Error ? error.message : error}\n`)
    return 2
  }
}

interface Options {
  readonly clients: readonly Client[]
  readonly agents: readonly Agent[]
  readonly model: string
  readonly cache: string
}

function readOptions(): Options | { print: string } {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      model: { type: 'string', default: PAGE_MODEL },
      cache: { type: 'string', default: cacheDirectory() },
      list: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  })
  if (values.help) return { print: HELP }
  const all = [...CLIENTS, ...AGENTS].map(({ name }) => name)
  if (values.list) return { print: all.map((name) => `${name}\n`).join('') }
  const names = values.only?.split(',') ?? all
  for (const name of names) {
    if (!all.includes(name)) throw new Error(`There is no client '${name}'. --list prints their names.`)
  }
  return {
    clients: CLIENTS.filter(({ name }) => names.includes(name)),
    agents: AGENTS.filter(({ name }) => names.includes(name)),
    model: values.model,
    cache: values.cache,
  }
}

function modelsFor(name: string): object[] {
  if (name === PAGE_MODEL) return [ECHO_MODEL]
  const { models } = parse(readFileSync(new URL('../../models.yaml', import.meta.url), 'utf8')) as {
    models: { id: string }[]
  }
  const model = models.find(({ id }) => id === name)
  if (!model) throw new Error(`models.yaml has no model '${name}'.`)
  return [model]
}

type Row = readonly [name: string, ...cells: string[]]
async function rowOf(client: Client, service: Service, cache: string): Promise<Row> {
  const asked = service.model === PAGE_MODEL ? client : withoutTools(client)
  try {
    const snippet = readSnippets().find(({ name }) => name === client.name)
    if (!snippet) return [client.name, `${FAILED}: docs/get-started/clients.md has no snippet with its name`]
    const failures = await ask(asked, snippet, await openEnvironment(asked, cache), service)
    const cellOf = (call: keyof typeof failures) => {
      if (failures[call] !== undefined) return `${FAILED}: ${failures[call]}`
      const left = call === 'snippet' ? undefined : asked.without?.[call]
      return left === undefined ? 'passed' : `not asked: ${left}`
    }
    return [client.name, cellOf('snippet'), cellOf('whole'), cellOf('streamed'), cellOf('tools')]
  } catch (error) {
    return [client.name, `${FAILED}: ${error instanceof Error ? error.message : error}`]
  }
}

async function agentRowsOf(agents: readonly Agent[], cache: string): Promise<Row[]> {
  const rows: Row[] = []
  for (const agent of agents) {
    const { bin, directory } = await openAgent(agent.package, cache)
    for (const model of Object.keys(agent.models)) {
      const cells: string[] = []
      for (const api of APIS) {
        const failures = await failuresOf(agent, bin, directory, api, model)
        cells.push(failures.length === 0 ? 'passed' : `${FAILED}: ${failures.join(' ')}`)
      }
      rows.push([`${agent.name} ${model}`, ...cells])
      process.stderr.write(`${agent.name} ${model}: ${cells.join(', ')}\n`)
    }
  }
  return rows
}

function withoutTools(client: Client): Client {
  return { ...client, without: { ...client.without, tools: 'the model is too small for tools' } }
}

function tableOf(heads: Row, rows: readonly Row[]): string {
  const lines = [heads, heads.map(() => '---') as unknown as Row, ...rows]
  return `${lines.map((row) => `| ${row.map((cell) => cell.replaceAll(/\s+/g, ' ').slice(0, 300)).join(' | ')} |`).join('\n')}\n`
}
