/** Tests one client library: runs its snippet of docs/get-started/clients.md, then its file in cases/, which uses the variables of the snippet. */
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { prepareWeights } from '#shared/prepare/weights.ts'
import type { CallName, Client } from './clients.ts'
import { cacheDirectory, type Environment } from './environments.ts'
import { PAGE_MODEL, type Snippet, settle } from './page.ts'

const HERE = import.meta.dirname
/** Timeout of all calls of one client, including its imports. */
const CLIENT_MS = 240_000
const DEFAULT_MODEL = 'smollm2-135m-instruct'
const OUTPUT_BYTES_MAX = 16 * 1024 * 1024

/**
 * Prompt of each call, and the expected answer of echo-1. This model repeats the prompt. If the prompt names a tool, then the model calls
 * the tool and repeats its result.
 */
const QUESTIONS: Readonly<Record<CallName, { prompt: string; answer: string }>> = {
  whole: { prompt: 'one two three', answer: 'one two three' },
  // The tokens have a delay, because tokens that are sent together may arrive in one chunk.
  streamed: { prompt: '!echo delay_ms=200\nfour five six seven eight', answer: 'four five six seven eight' },
  tools: { prompt: 'please get_weather', answer: 'sunny in city' },
}
const CALLS = Object.keys(QUESTIONS) as CallName[]

/** The service that a client calls. */
export interface Service {
  readonly url: string
  readonly model: string
}

/** Result of each call: undefined for success, otherwise the reason of the failure. */
export type Failures = Readonly<Record<'snippet' | CallName, string | undefined>>

/** Answer of a call: its text, or the pieces of a stream. */
type Said = { answer?: unknown; error?: string }

/**
 * Runs the snippet and the calls of a client in a separate process with a separate home.
 *
 * @throws Error if the process crashes or hangs, with the end of its output
 */
export async function ask(
  client: Client,
  snippet: Snippet,
  environment: Environment,
  service: Service,
): Promise<Failures> {
  const directory = await mkdtemp(join(await madeIn(environment.directory), `${client.name}-`))
  try {
    const said = await { python: askPython, js: askJs, sh: askSh }[client.language]({
      client,
      snippet,
      environment,
      service,
      directory,
    })
    const failureOf = (call: CallName) => whyNot(client, call, said[call], service.model)
    return {
      snippet: whyNot(client, 'snippet', said.page, service.model),
      whole: failureOf('whole'),
      streamed: failureOf('streamed'),
      tools: failureOf('tools'),
    }
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

async function madeIn(directory: string): Promise<string> {
  const runs = join(directory, 'runs')
  await mkdir(runs, { recursive: true })
  return runs
}

interface Run {
  readonly client: Client
  readonly snippet: Snippet
  readonly environment: Environment
  readonly service: Service
  /** A directory for this run only. */
  readonly directory: string
}

type Report = Record<string, Said | undefined>

async function askPython(run: Run): Promise<Report> {
  const { directory, environment } = run
  // If the file had the name of the package that it imports, then Python would import the file itself.
  const file = join(directory, 'case_.py')
  await writeFile(join(directory, 'page.py'), settled(run, run.snippet.code))
  await writeFile(file, await caseOf(run, 'py'))
  const args = [join(HERE, 'drive.py'), file, promptsOf(run.client)]
  return lastLine(await execute(join(environment.bin ?? '', 'python'), args, run))
}

async function askJs(run: Run): Promise<Report> {
  const { directory } = run
  const code = await caseOf(run, 'mjs')
  const [, names] = /import (\{[^}]*\}) from '\.\/page\.mjs'/.exec(code) ?? []
  await writeFile(join(directory, 'page.mjs'), `${settled(run, run.snippet.code)}\n${names ? `export ${names}\n` : ''}`)
  await writeFile(join(directory, 'case.mjs'), code)
  await copyFile(join(HERE, 'drive.mjs'), join(directory, 'drive.mjs'))
  return lastLine(await execute(process.execPath, ['drive.mjs', promptsOf(run.client)], run))
}

async function askSh(run: Run): Promise<Report> {
  const { directory, client } = run
  await writeFile(join(directory, 'page.sh'), settled(run, run.snippet.code))
  await writeFile(join(directory, 'case.sh'), await caseOf(run, 'sh'))
  const shell = (script: string, ...args: string[]) =>
    execute('sh', ['-ec', script, 'sh', ...args], run).then(
      (answer): Said => ({ answer: answer.trim() }),
      (error: Error): Said => ({ error: error.message }),
    )
  // The snippet of a load generator prints a report. The function `page` of its case file then prints the number of successful requests.
  const isForLoads = client.requests !== undefined
  if (isForLoads) await linkWeights(directory)
  const report: Report = { page: await shell(isForLoads ? '. ./page.sh >&2; . ./case.sh; page' : '. ./page.sh') }
  const before = isForLoads ? '' : '. ./page.sh >/dev/null; '
  for (const call of callsOf(client)) {
    report[call] = await shell(`${before}. ./case.sh; ${call} "$1"`, QUESTIONS[call].prompt)
  }
  return report
}

/**
 * Links the weights of the default model into `.data/models`, as if `npm start` had downloaded them. The snippets of load generators extract the
 * tokenizer from these weights.
 */
async function linkWeights(directory: string): Promise<void> {
  const weights = join(cacheDirectory(), '..', 'models')
  await prepareWeights(DEFAULT_MODEL, weights)
  await mkdir(join(directory, '.data'))
  await symlink(weights, join(directory, '.data', 'models'))
}

function callsOf({ without = {} }: Client): CallName[] {
  return CALLS.filter((call) => without[call] === undefined)
}

function promptsOf(client: Client): string {
  return JSON.stringify(Object.fromEntries(callsOf(client).map((call) => [call, QUESTIONS[call].prompt])))
}

async function caseOf(run: Run, extension: string): Promise<string> {
  const file = run.client.file ?? `${run.client.name}.${extension}`
  return settled(run, await readFile(join(HERE, 'cases', file), 'utf8'))
}

function settled({ service }: Run, text: string): string {
  return settle(text, service.url, service.model)
}

/** Runs a command with a minimal environment that disables telemetry. */
function execute(command: string, args: string[], { directory, environment }: Run): Promise<string> {
  const env = {
    PATH: [environment.bin, process.env.PATH].filter(Boolean).join(':'),
    HOME: directory,
    LANG: 'C.UTF-8',
    PYTHONDONTWRITEBYTECODE: '1',
    DO_NOT_TRACK: '1',
    HAYSTACK_TELEMETRY_ENABLED: 'False',
    MASTRA_TELEMETRY_DISABLED: '1',
    LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  }
  const options = { cwd: directory, env, timeout: CLIENT_MS, maxBuffer: OUTPUT_BYTES_MAX }
  return new Promise((resolve, reject) => {
    const child = execFile(command, args, options, (error, stdout, stderr) => {
      if (!error) {
        if (process.env.CLIENT_LOG) process.stderr.write(stderr)
        return resolve(stdout)
      }
      const why = error.killed ? `it took more than ${CLIENT_MS / 1000} s` : `it ended with code ${error.code}`
      reject(new Error(`${why}: ${`${stdout}\n${stderr}`.trim().slice(-2_000)}`))
    })
    child.stdin?.end()
  })
}

function lastLine(output: string): Report {
  return JSON.parse(output.trim().split('\n').at(-1) ?? '')
}

/** Reason of a failure; undefined for success, and for a call that is not made. */
function whyNot(client: Client, call: 'snippet' | CallName, said: Said | undefined, model: string): string | undefined {
  if (call !== 'snippet' && client.without?.[call]) return undefined
  if (said === undefined) return 'The client printed no result for this call.'
  if (said.error !== undefined) return said.error
  const { answer } = said
  const text = Array.isArray(answer) ? answer.join('') : answer
  if (typeof text !== 'string' || text.trim() === '') return `It answered ${JSON.stringify(answer)}.`
  if (model !== PAGE_MODEL && !(call === 'snippet' && client.requests)) return undefined
  const wanted = call === 'snippet' ? String(client.requests ?? 'hello') : QUESTIONS[call].answer
  if (text.trim() !== wanted) return `It answered ${JSON.stringify(text)} in place of ${JSON.stringify(wanted)}.`
  if (call === 'streamed' && client.language !== 'sh' && !(Array.isArray(answer) && answer.length > 1))
    return 'It came in one piece.'
  return undefined
}
