import { readFile } from 'node:fs/promises'
import { text as readText } from 'node:stream/consumers'
import { type Command, type Invocation, noArguments, type Values } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { follow } from '#services/cli/following/following.ts'
import { coloured } from '#services/cli/text/output.ts'
import { secondsOf, timeOf } from '#services/cli/text/time.ts'

const CHAT = '/v1/chat/completions'
const COMPLETIONS = '/v1/completions'
const CODE = '/v1/tools/code'
const MESSAGES = '/v1/messages'
/** The messages format demands a limit. */
const MESSAGES_TOKENS = 1_024

/** `sluice submit` */
export const submit: Command = {
  summary: 'Submit a job, and follow it with --follow',
  help: `Usage: sluice submit [options]

Submits a durable job: it runs whatever happens to this terminal. The request is the body that the endpoint takes, from
--body, --file or standard input, or made from --model and --prompt.

Options:
  --endpoint PATH        what to call (default ${CHAT})
  --body JSON            the request
  --file PATH            the request in a file; - is standard input
  --model ID             the model of a request made here
  --prompt TEXT          the prompt of a request made here
  --stream               record the output as it comes; implied by --follow with --prompt
  --follow               follow the job until it ends, and exit as it ended
  --priority low         run it when nothing else waits
  --run-at TIME          do not start it before: 2030-01-31T08:00:00Z, unix seconds, or 15m from now
  --deadline LENGTH      when it must have ended, from now or from --run-at, such as 90s, 15m or 2h
  --start-within LENGTH  how long it may wait for its first start; later it expires
  --metadata KEY=VALUE   keep this with the job; may be repeated
  --webhook URL          tell this address when the job ends
  --idempotency-key KEY  the same key within a day gives the same job

Examples:
  sluice submit --model smollm2-135m-instruct --prompt 'Tell me a story.' --follow
  sluice submit --endpoint ${MESSAGES} --file request.json --priority low
  sluice submit --endpoint ${CODE} --body '{"lang":"python","code":"print(6 * 7)","stream":true}' --follow
  id=$(sluice submit --file request.json | jq -r .id)`,
  options: {
    endpoint: { type: 'string' },
    body: { type: 'string' },
    file: { type: 'string' },
    model: { type: 'string' },
    prompt: { type: 'string' },
    stream: { type: 'boolean' },
    follow: { type: 'boolean' },
    priority: { type: 'string' },
    'run-at': { type: 'string' },
    deadline: { type: 'string' },
    'start-within': { type: 'string' },
    metadata: { type: 'string', multiple: true },
    webhook: { type: 'string' },
    'idempotency-key': { type: 'string' },
  },
  async run(invocation: Invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    noArguments(args)
    const job = await api.submit(await requestOf(values), values.text('idempotency-key')).catch(inDoubt)
    if (values.has('follow')) {
      if (out.isForPeople) out.note(job.id)
      return await follow(invocation, job.id, 0)
    }
    if (!out.isForPeople) await out.json(job)
    else await out.write(`${coloured('green', job.id)} ${job.status}\nFollow it: sluice follow ${job.id}\n`)
    return EXIT.ok
  },
}

/** An answer that never came says nothing about the job. */
function inDoubt(error: unknown): never {
  const isRefused = (error as { cause?: NodeJS.ErrnoException }).cause?.code === 'ECONNREFUSED'
  if (!(error instanceof CommandError) || error.exit !== EXIT.unreachable || isRefused) throw error
  const next = `${error.next ?? ''} The job may have been accepted: look with \`sluice jobs\`, or submit with an --idempotency-key.`
  throw new CommandError(error.exit, error.message, next.trim(), error)
}

/** The body of `POST /v1/jobs` (docs/jobs.md, Submit). */
async function requestOf(values: Values): Promise<object> {
  const endpoint = values.text('endpoint') ?? CHAT
  if (!endpoint.startsWith('/')) throw usageError(`--endpoint ${endpoint}: give a path such as ${CHAT}.`)
  const priority = values.text('priority')
  if (priority !== undefined && priority !== 'low' && priority !== 'normal') {
    throw usageError(`--priority ${priority}: give low or normal.`)
  }
  const runAt = values.text('run-at')
  const deadline = values.text('deadline')
  const startWithin = values.text('start-within')
  const webhook = values.text('webhook')
  const metadata = metadataOf(values.list('metadata'))
  return {
    endpoint,
    body: await bodyOf(values, endpoint),
    ...(priority && { priority }),
    ...(runAt !== undefined && { run_at: timeOf('run-at', runAt, Date.now(), 1) }),
    ...(deadline !== undefined && { expires_after_seconds: secondsOf('deadline', deadline) }),
    ...(startWithin !== undefined && { start_within_seconds: secondsOf('start-within', startWithin) }),
    ...(webhook !== undefined && { webhook: { url: webhook } }),
    ...(metadata && { metadata }),
  }
}

async function bodyOf(values: Values, endpoint: string): Promise<object> {
  const [model, prompt] = [values.text('model'), values.text('prompt')]
  const sources = [values.text('body'), values.text('file'), model ?? prompt].filter((source) => source !== undefined)
  if (sources.length > 1) throw usageError('Give one of --body, --file, or --model with --prompt.')
  if (model !== undefined || prompt !== undefined) {
    if (!model || !prompt) throw usageError('--model and --prompt belong together.')
    const isStreamed = values.has('stream') || values.has('follow')
    return { ...shortBody(endpoint, model, prompt), ...(isStreamed && { stream: true }) }
  }
  const body = parseBody(await readBody(values))
  return values.has('stream') ? { ...body, stream: true } : body
}

function shortBody(endpoint: string, model: string, prompt: string): object {
  const messages = [{ role: 'user', content: prompt }]
  if (endpoint === CHAT) return { model, messages }
  if (endpoint === COMPLETIONS) return { model, prompt }
  if (endpoint === MESSAGES) return { model, max_tokens: MESSAGES_TOKENS, messages }
  throw usageError(`--prompt makes no request for ${endpoint}.`, 'Give the request with --body or --file.')
}

async function readBody(values: Values): Promise<string> {
  const file = values.text('file')
  const given = values.text('body')
  if (given !== undefined) return given
  if (file === undefined && process.stdin.isTTY) {
    throw usageError('There is no request.', 'Give it with --body, --file or standard input, or --model and --prompt.')
  }
  if (file === undefined || file === '-') return await readText(process.stdin)
  return await readFile(file, 'utf8').catch((error: Error) => {
    throw usageError(`--file ${file}: ${error.message}`)
  })
}

function parseBody(text: string): object {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw usageError(`The request is not JSON: ${error instanceof Error ? error.message : error}`)
  }
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body
  throw usageError('The request is not a JSON object.')
}

/** Metadata as `--metadata KEY=VALUE` gives it; undefined without any. @throws CommandError */
export function metadataOf(pairs: readonly string[]): Record<string, string> | undefined {
  if (pairs.length === 0) return undefined
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=')
      if (at < 1) throw usageError(`--metadata ${pair}: give KEY=VALUE.`)
      return [pair.slice(0, at), pair.slice(at + 1)]
    }),
  )
}
