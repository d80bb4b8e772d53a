import { mkdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { AGENTS } from '../clients/agents/agents.ts'
import { ask } from '../clients/ask.ts'
import { CLIENTS } from '../clients/clients.ts'
import { PAGE_KEY, PAGE_MODEL, readSnippets } from '../clients/page.ts'
import { SDKS } from '../clients/sdks.ts'
import { findPythonEnv } from '../support/processes/python.ts'
import { pinsOf } from '../support/python-cases.ts'
import { type Stack, startStack } from '../support/stack.ts'

/*
 * Runs snippets of docs/get-started/clients.md unchanged: those whose packages other tests have installed. test/clients/run runs the snippets of
 * all clients.
 */

const IN_NODE_MODULES = ['openai-node', 'anthropic-node', 'ai-sdk', 'openai-agents-js']
const IN_SDK_NEW = ['openai-python', 'anthropic-python']
const CLIENT_MS = 250_000

const bin = await findPythonEnv('sdk-new', pinsOf('new'))

describe('docs/get-started/clients.md', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({ settings: { SLUICE_API_KEY: PAGE_KEY } })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  async function failuresOf(name: string, environment: { directory: string; bin?: string | undefined }) {
    const client = CLIENTS.find((client) => client.name === name)
    const snippet = readSnippets().find((snippet) => snippet.name === name)
    if (!client || !snippet) throw new Error(`no client ${name}`)
    await mkdir(environment.directory, { recursive: true })
    const failures = await ask(
      client,
      snippet,
      { bin: undefined, ...environment },
      { url: stack.url, model: PAGE_MODEL },
    )
    return Object.values(failures).filter((failure) => failure !== undefined)
  }

  it.each(IN_NODE_MODULES)(
    'has a snippet of the client %s that works for streams, tool calls and calls without streaming',
    { timeout: CLIENT_MS },
    async (name) => {
      const directory = join(import.meta.dirname, '../../node_modules/.cache/sluice-clients')
      expect(await failuresOf(name, { directory })).toEqual([])
    },
  )

  it.skipIf(!bin).each(IN_SDK_NEW)(
    'has a snippet of the library %s that works for streams, tool calls and calls without streaming',
    { timeout: CLIENT_MS },
    async (name) => {
      expect(await failuresOf(name, { directory: stack.dataDir, bin })).toEqual([])
    },
  )

  it('names the tested versions of the official SDKs as pinned in this project', async () => {
    const page = await readFile('docs/get-started/clients.md', 'utf8')
    const rows = page.split('\n').filter((line) => /^\| (openai|anthropic|@anthropic-ai)/.test(line))
    const { openaiPython, openaiNode, anthropicPython, anthropicNode } = SDKS
    const named = rows.map((row) => /\d+\.\d+\.\d+/.exec(row)?.[0])
    expect(named).toEqual([openaiPython, openaiNode, anthropicPython, anthropicNode])
    const { devDependencies } = JSON.parse(await readFile('package.json', 'utf8'))
    expect([devDependencies.openai, devDependencies['@anthropic-ai/sdk']]).toEqual([openaiNode, anthropicNode])
  })

  it('has a snippet for every tested client and for no other client', () => {
    const snippets = readSnippets().map(({ name, language }) => ({ name, language }))
    const agents = AGENTS.map(({ name }) => ({ name, language: 'sh' }))
    const clients = [...CLIENTS.map(({ name, language }) => ({ name, language })), ...agents]
    const byName = (a: { name: string }, b: { name: string }) => a.name.localeCompare(b.name)
    expect(snippets.toSorted(byName)).toEqual(clients.toSorted(byName))
  })
})
