/** The nightly run of the official SDKs' own tests, with Sluice as their mock server. */
import { setTimeout as delay } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { ECHO_MODEL, startStack } from '../../support/stack.ts'
import { cacheDirectory } from '../environments.ts'
import { PAGE_KEY } from '../page.ts'
import { execute } from './execute.ts'
import { install } from './install.ts'
import { judge, readKnown, type Verdict } from './results.ts'
import { startStandIn } from './stand-in.ts'
import { SUITES, type Suite, TEST_MODELS } from './suites.ts'

const HELP = `Usage: test/clients/sdk-tests/run [options]

Starts a service and runs the official SDKs' own tests against it, for the endpoints that Sluice has. Tests that cannot pass are
listed in test/clients/sdk-tests/known.yaml, with the reason. All other failures are printed.

  --only A,B         run only these suites: ${SUITES.map(({ name }) => name).join(', ')}
  --source NAME=DIR  use this checkout of a suite's repository instead of a download; repeatable
  --cache DIR        directory of the installed SDKs (default: ${cacheDirectory()})
  --all              also print the failures that known.yaml lists
  --help             print this help

Exit code 0: each test passed, or failed as known.yaml lists; 1: other failures, or a listed test passed; 2: the tests could not run.
`
/** Timeout until the local embeddings model answers, including its first preparation. */
const READY_MS = 600_000

process.exit(await main())

async function main(): Promise<number> {
  try {
    const options = readOptions()
    if (options === undefined) {
      process.stdout.write(HELP)
      return 0
    }
    const { suites, sources, cache, isAll } = options
    await using stack = await startStack({ models: modelsOf(), settings: { SLUICE_API_KEY: PAGE_KEY } })
    await using standIn = await startStandIn(stack.url, PAGE_KEY)
    await untilReady(stack.url)
    const rows: string[] = []
    let isGood = true
    for (const suite of suites) {
      const results = await execute(suite, await install(suite, cache, sources.get(suite.name)), standIn.url)
      const verdict = judge(suite.name, results, isAll ? [] : readKnown())
      isGood &&= verdict.failed.length === 0 && verdict.stale.length === 0
      rows.push(rowOf(suite, verdict))
      process.stdout.write(storyOf(suite, verdict))
    }
    process.stdout.write(
      `| suite | passed | skipped by itself | failed as listed | failed |\n| --- | --- | --- | --- | --- |\n${rows.join('')}`,
    )
    return isGood ? 0 : 1
  } catch (error) {
    process.stderr.write(`The tests could not run: ${error instanceof Error ? error.message : error}\n`)
    return 2
  }
}

interface Options {
  readonly suites: readonly Suite[]
  readonly sources: ReadonlyMap<string, string>
  readonly cache: string
  readonly isAll: boolean
}

/** Reads the options of the command line. Returns undefined for --help. */
function readOptions(): Options | undefined {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      source: { type: 'string', multiple: true, default: [] },
      cache: { type: 'string', default: cacheDirectory() },
      all: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h' },
    },
  })
  if (values.help) return undefined
  const byName = (name: string) => {
    const suite = SUITES.find((suite) => suite.name === name)
    if (!suite) throw new Error(`There is no suite '${name}'. --help lists their names.`)
    return suite
  }
  const sources = values.source.map((source): [string, string] => {
    const [name = '', directory = ''] = source.split('=')
    return [byName(name).name, directory]
  })
  const suites = values.only?.split(',').map(byName) ?? SUITES
  return { suites, sources: new Map(sources), cache: values.cache, isAll: values.all }
}

function modelsOf(): object[] {
  const embeddings = { dimensions: 384, batch_inputs_max: 64, batch_tokens_max: 2048 }
  return [
    { ...ECHO_MODEL, aliases: TEST_MODELS },
    {
      id: 'text-embedding-3-small',
      pool: 'embeddings',
      engine: { type: 'local', model: 'all-minilm-l6-v2' },
      limits: { context_tokens: 512 },
      embeddings,
    },
    {
      id: 'whisper-1',
      aliases: ['gpt-4o-transcribe'],
      pool: 'transcription',
      engine: { type: 'local', model: 'whisper-tiny.en' },
      transcription: { languages: ['en'] },
    },
  ]
}

async function untilReady(url: string): Promise<void> {
  const headers = { authorization: `Bearer ${PAGE_KEY}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ model: 'text-embedding-3-small', input: 'hello' })
  const deadline = Date.now() + READY_MS
  for (;;) {
    const answer = await fetch(`${url}/v1/embeddings`, { method: 'POST', headers, body })
    if (answer.ok) return
    const why = await answer.text()
    if (Date.now() > deadline) throw new Error(`The embeddings model did not answer: ${why}`)
    await delay(1_000)
  }
}

function rowOf({ name }: Suite, { passed, skipped, expected, failed }: Verdict): string {
  return `| ${name} | ${passed} | ${skipped} | ${expected} | ${failed.length} |\n`
}

function storyOf({ name: suite }: Suite, { failed, stale }: Verdict): string {
  const failures = failed.map(
    ({ name, message }) => `FAILED ${suite} ${name}\n  ${message.replaceAll(/\s+/g, ' ').slice(0, 400)}\n`,
  )
  const passes = stale.map(
    ({ tests, says }) => `NOT SEEN ${suite} ${tests} (${says}): remove the group from known.yaml\n`,
  )
  return [...failures, ...passes].join('')
}
