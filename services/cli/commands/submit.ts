import { readFile } from 'node:fs/promises'
import { text as readText } from 'node:stream/consumers'
import { Metadata } from '#schemas/lib/record.ts'
import {
  beginning,
  CommandError,
  coloured,
  EXIT,
  type ExitCode,
  fileError,
  plain,
  secondsOf,
  timeOf,
  usageError,
} from '#services/cli/text/output.ts'
import { type Command, type Invocation, noArguments, type Values } from './command.ts'
import { follow } from './following.ts'

const CHAT = '/v1/chat/completions'
const COMPLETIONS = '/v1/completions'
const CODE = '/v1/tools/code'
const MESSAGES = '/v1/messages'
/** Default for `max_tokens`, which the Messages API requires. */
const MESSAGES_MAX_TOKENS = 1_024

export const submit: Command = {
  summary: 'Submit a job',
  help: `Usage: sluice submit [options]

Submits a durable job, which keeps running if this terminal is closed. The request is the JSON body of the endpoint. Pass it with
--body, --file or standard input, or let --model and --prompt build a simple one.

Options:
  --endpoint PATH        endpoint to call (default ${CHAT})
  --body JSON            request body
  --file PATH            file with the request body; - is standard input
  --model ID             model for --prompt
  --prompt TEXT          build a request with this prompt; requires --model
  --stream               stream the output as events; implied by --follow with --prompt
  --follow               follow the job until it has finished; the exit code is that of sluice follow
  --priority PRIORITY    normal or low; low gets a quarter of the slots while normal jobs wait (default normal)
  --run-at TIME          earliest start: 2030-01-31T08:00:00Z, Unix seconds, or a duration from now such as 15m
  --deadline DURATION    the job expires if it has not finished within this time, from now or --run-at: 90s, 15m, 2h
  --start-deadline DURATION
                         the job expires if it has not started within this time
  --metadata KEY=VALUE   attach metadata to the job; repeatable
  --webhook URL          send a webhook to this URL when the job has finished
  --idempotency-key KEY  a repeated submission with this key within 24 hours returns the same job

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
    'start-deadline': { type: 'string' },
    metadata: { type: 'string', multiple: true },
    webhook: { type: 'string' },
    'idempotency-key': { type: 'string' },
  },
  async run(invocation: Invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    noArguments(args)
    const job = await api.submit(await requestOf(values), values.text('idempotency-key')).catch(explainUnknownOutcome)
    if (values.has('follow')) {
      if (out.isHumanReadable) out.note(job.id)
      return await follow(invocation, job.id, 0)
    }
    if (!out.isHumanReadable) await out.json(job)
    else await out.write(`${coloured('green', job.id)} ${job.status}\nTo follow the job: sluice follow ${job.id}\n`)
    return EXIT.ok
  },
}

/**
 * Rethrows an error of a submission. After a lost connection or a server error (5xx) the job may have been created, so the remedy also gets
 * a note about this. A refused connection gets no note, because the request never reached the service.
 */
function explainUnknownOutcome(error: unknown): never {
  const isRefused = (error as { cause?: NodeJS.ErrnoException }).cause?.code === 'ECONNREFUSED'
  if (!(error instanceof CommandError) || error.exit !== EXIT.unreachable || isRefused) throw error
  const next = `${error.next ?? ''}\nThe job may have been created. Before you submit it again, look for it with sluice jobs. A submission with --idempotency-key can be repeated safely.`
  throw new CommandError(error.exit, error.message, next.trim(), error)
}

async function requestOf(values: Values): Promise<object> {
  const endpoint = values.text('endpoint') ?? CHAT
  if (!endpoint.startsWith('/')) throw usageError(`--endpoint must be a path such as ${CHAT}; got '${endpoint}'.`)
  const priority = values.text('priority')
  if (priority !== undefined && priority !== 'low' && priority !== 'normal') {
    throw usageError(`--priority must be low or normal; got '${priority}'.`)
  }
  const runAt = values.text('run-at')
  const deadline = values.text('deadline')
  const startDeadline = values.text('start-deadline')
  const webhook = values.text('webhook')
  const metadata = metadataOf(values.list('metadata'))
  return {
    endpoint,
    body: await bodyOf(values, endpoint),
    ...(priority && { priority }),
    ...(runAt !== undefined && { run_at: timeOf('run-at', runAt, Date.now(), 1) }),
    ...(deadline !== undefined && { expires_after_seconds: secondsOf('deadline', deadline) }),
    ...(startDeadline !== undefined && { start_within_seconds: secondsOf('start-deadline', startDeadline) }),
    ...(webhook !== undefined && { webhook: { url: webhook } }),
    ...(metadata && { metadata }),
  }
}

async function bodyOf(values: Values, endpoint: string): Promise<object> {
  const [model, prompt] = [values.text('model'), values.text('prompt')]
  const sources = [values.text('body'), values.text('file'), model ?? prompt].filter((source) => source !== undefined)
  if (sources.length > 1) throw usageError('Use only one of --body, --file, or --model with --prompt.')
  if (model !== undefined || prompt !== undefined) {
    if (!model) throw usageError('--prompt requires --model.')
    if (!prompt) throw usageError('--model requires --prompt.')
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
  if (endpoint === MESSAGES) return { model, max_tokens: MESSAGES_MAX_TOKENS, messages }
  throw usageError(`--prompt does not support the endpoint ${endpoint}.`, 'Pass the request with --body or --file.')
}

async function readBody(values: Values): Promise<string> {
  const file = values.text('file')
  const body = values.text('body')
  if (body !== undefined) return body
  if (file === undefined && process.stdin.isTTY) {
    throw usageError(
      'Missing request.',
      'Pass the request with --body, --file or standard input, or use --model and --prompt.',
    )
  }
  if (file === undefined || file === '-') return await readText(process.stdin)
  return await readFile(file, 'utf8').catch((error: Error) => {
    throw fileError(file, error)
  })
}

function parseBody(text: string): object {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch (error) {
    throw usageError(`The request is not valid JSON: ${error instanceof Error ? error.message : error}`)
  }
  if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body
  throw usageError('The request must be a JSON object.')
}

type Pairs = Readonly<Record<string, string>>

/** Maximum number of key-value pairs in the metadata of a job or batch. */
export const METADATA_PAIRS_MAX = 16

export function metadataOf(pairs: readonly string[]): Pairs | undefined {
  if (pairs.length === 0) return undefined
  const metadata = Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=')
      if (at < 1) throw usageError(`--metadata must have the form KEY=VALUE; got '${pair}'.`)
      return [pair.slice(0, at), pair.slice(at + 1)]
    }),
  )
  checkMetadata(metadata, METADATA_PAIRS_MAX)
  return metadata
}

/**
 * Checks metadata before the upload of a file. An invalid pair is therefore reported before a long upload.
 *
 * @throws CommandError for metadata that the service would refuse
 */
export function checkMetadata(metadata: Pairs | undefined, pairsMax: number): void {
  const pairs = Object.entries(metadata ?? {})
  if (pairs.length > pairsMax) {
    throw usageError(`--metadata may set at most ${pairsMax} keys with this command; got ${pairs.length}.`)
  }
  const long = pairs.find(([key, value]) => !Metadata.safeParse({ [key]: value }).success)
  if (long)
    throw usageError(
      `--metadata ${beginning(plain(long[0]), 64)}: a key may have at most 64 characters, and a value at most 512.`,
    )
}

/**
 * Returns the pairs in `given`, and as many pairs of `own` as fit into the maximum of {@link METADATA_PAIRS_MAX}. A key in `given` is never
 * replaced.
 */
export function metadataWith(given: Pairs | undefined, own: Pairs): Pairs {
  const metadata = new Map(Object.entries(given ?? {}))
  for (const [key, value] of Object.entries(own)) {
    if (metadata.size < METADATA_PAIRS_MAX && !metadata.has(key)) metadata.set(key, value)
  }
  return Object.fromEntries(metadata)
}
