import type {
  BatchCounts,
  BatchDialect,
  BatchPartEvent,
  BatchPartRange,
  BatchPartRequest,
  BatchPartResult,
  BatchRequest,
  BatchUsage,
  Refusals,
} from '#schemas/batches/batch.ts'
import { ERRORS, type ErrorBody } from '#schemas/error.ts'
import { type Line, linesOf, readLine } from '#services/ingress/batches/lines.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { LINES_WAIT } from '#services/ingress/calls/child-counts.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { admitJob, type JobAdmission } from '#shared/capacity/capacity.ts'
import { writeJson } from '#shared/json/write.ts'
import { answerText } from '#shared/kinds/body-text.ts'
import type { ChildEnd, ChildJob, Composition } from '#shared/kinds/composition.ts'
import { messagesErrorBody, openaiErrorBody, openaiStatus } from '#shared/kinds/errors.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { formIn, valuesIn } from '#shared/tables/answers.ts'
import { type BatchTools, callerOf } from './tools.ts'

interface Submitted {
  readonly lines: readonly number[]
  readonly refused: Refusals
  readonly next?: number | undefined
}

/** Delay in ms before a line (one request) that exceeded a rate limit or a budget is tried again, unless the error states a time. */
const WAIT_MS = 10_000
const WAIT_MS_MAX = 60_000

export async function* runPart(
  tools: BatchTools,
  request: BatchPartRequest,
  { composition, idempotencyKey, signal, tenant, onProgress }: AttemptContext,
): AsyncGenerator<BatchPartEvent> {
  if (!composition) throw new ServiceError('internal_error', 'A batch runs only as a durable job.')
  const [id = ''] = idempotencyKey.split(':')
  const part = { id, request, tenant }
  const { lines, refused } = await submitAll(tools, part, composition, signal).catch((error: unknown) => {
    if (error instanceof LineWaits) onProgress?.({ phase: LINES_WAIT, percent: null, message: error.message })
    throw error
  })
  await composition.wait(lines.map((line) => childJobId(id, String(line))))
  const undone = { type: 'expired' } as const
  const result = await writeLines(tools, request, request.range, { id, refused, undone, composition })
  yield { type: 'part', result }
}

interface OwnPart {
  readonly id: string
  readonly request: BatchPartRequest
  readonly tenant: string
}

/**
 * Ends the attempt of a part of a batch if the next line (request) must wait for a rate limit or a budget. This frees the
 * slot of the part. The next attempt resumes at this line.
 */
class LineWaits extends ServiceError {
  constructor({ message, retryAfterMs = WAIT_MS, code }: ServiceError) {
    const waitMs = code === 'insufficient_quota' ? WAIT_MS_MAX : Math.min(retryAfterMs, WAIT_MS_MAX)
    super('rate_limit_exceeded', message, { retryAfterMs: waitMs })
  }
}

async function submitAll(
  tools: BatchTools,
  part: OwnPart,
  composition: Composition,
  signal: AbortSignal,
): Promise<Submitted> {
  const lines: number[] = []
  const refused: Refusals = {}
  for (let from: number | undefined; ; ) {
    let waits: LineWaits | undefined
    const input = from === undefined ? {} : { from }
    const submitted = await composition.step<Submitted>('submit', input, async () => {
      const run = { from: from ?? part.request.range.line, lines: [] as number[], refused: {} as Refusals }
      const next = await submitLines(tools, part, composition, signal, run).catch((error: unknown) => {
        const hasProgress = run.lines.length + Object.keys(run.refused).length > 0
        if (!(error instanceof LineWaits) || !hasProgress) throw error
        waits = error
        return run.from
      })
      return { value: { lines: run.lines, refused: run.refused, ...(waits && { next }) } }
    })
    lines.push(...submitted.lines)
    Object.assign(refused, submitted.refused)
    if (waits) throw waits
    from = submitted.next
    if (from === undefined) return { lines, refused }
  }
}

async function submitLines(
  tools: BatchTools,
  part: OwnPart,
  composition: Composition,
  signal: AbortSignal,
  run: { from: number; lines: number[]; refused: Refusals },
): Promise<undefined> {
  const { lineBytesMax, context } = tools
  const { request } = part
  for await (const line of linesOf(context.blobs, request.input, lineBytesMax, request.range)) {
    if (line.number < run.from) continue
    signal.throwIfAborted()
    run.from = line.number
    const refusal = await submitLine(tools, part, line, (child) =>
      context.submitQueue.runLine(() => composition.submit(child), signal),
    ).catch((error: unknown) => refusalOf(error))
    if (refusal instanceof ServiceError) run.refused[line.number] = refusal.toBody()
    else run.lines.push(line.number)
  }
}

async function submitLine(
  tools: BatchTools,
  part: OwnPart,
  line: Line,
  submit: (child: ChildJob) => Promise<string>,
): Promise<void> {
  const { context } = tools
  const { id, tenant, request } = part
  const child = await childOf(tools, part, line)
  const keyId = request.rights.key_id
  const key = context.keys.limited(keyId, tenant)
  const jobs = () => requireJobs(context)
  using holding = context.storage.open(tenant)
  // The job stores about as many bytes as its line has, so the line's length is reserved in the storage quota.
  await Promise.resolve(holding.grow(line.bytes?.length ?? 0)).catch(throwWait)
  await context.limits.enterLine(key).catch(throwWait)
  let admission: JobAdmission | undefined
  try {
    admission = await admitJob(context, jobs, { ...child, keyId, tenant })?.catch(throwWait)
    await submit({ ...child, reservedNanos: admission?.nanos })
    holding.stored()
    admission?.handOver({ id: childJobId(id, child.key), tenant })
  } catch (error) {
    admission?.release()
    context.limits.leaveLine(key)
    throw error
  }
}

const WAITED_FOR: ReadonlySet<string> = new Set(['rate_limit_exceeded', 'token_limit_exceeded', 'insufficient_quota'])

function throwWait(thrown: unknown): never {
  const error = ServiceError.from(thrown)
  throw WAITED_FOR.has(error.code) ? new LineWaits(error) : error
}

/**
 * Returns the error of an invalid line. A retryable error is not caused by the line, so it is thrown.
 *
 * @throws The error, if it is retryable
 */
function refusalOf(thrown: unknown): ServiceError {
  const error = ServiceError.from(thrown)
  if (ERRORS[error.code].retry) throw error
  return error
}

async function childOf(
  { context, lineBytesMax }: BatchTools,
  { request, tenant }: OwnPart,
  line: Line,
): Promise<ChildJob> {
  const { dialect, endpoint: path } = request
  const { customId, body } = await runYielding(readLine(line, { dialect, lineBytesMax }))
  const endpoint: JobEndpoint = findEndpoint(context, path)
  const prepared = await endpoint.prepare(context, callerOf(request, tenant), body)
  if (prepared.stream) {
    throw new ServiceError('unsupported_value', "'stream' must be false in a batch.", { param: 'stream' })
  }
  if (prepared.onCreated) {
    throw new ServiceError('unsupported_value', "Requests of a batch cannot use 'conversation'. Remove the field.", {
      param: 'conversation',
    })
  }
  const { name: kind, pool } = endpoint.kind
  return {
    key: String(line.number),
    endpoint: path,
    kind,
    pool,
    model: prepared.model,
    body: prepared.body,
    sent: body,
    encode: prepared.encode,
    metadata: { custom_id: customId },
  }
}

/** Names of the result files of an OpenAI batch. An Anthropic batch has only `output`. */
export const SIDES = ['output', 'errors'] as const
export type Side = (typeof SIDES)[number]

interface PartEnds {
  readonly id: string
  readonly refused: Refusals
  readonly undone: Outcome
  readonly composition: Composition
}

/**
 * Key of the blob with the result lines of a part. The key begins with the job id of the part, so the blob is deleted
 * together with the job.
 */
export function partBlob(id: string, side: Side): string {
  return `${id}-${side}`
}

/**
 * Writes the outcomes of a part's requests, in order, into the part's two blobs. Only one answer at a time is in
 * memory. Errors are collected in memory, because they are short.
 */
export async function writeLines(
  { context, lineBytesMax }: BatchTools,
  { dialect, input, answer_form }: Pick<BatchRequest, 'dialect' | 'input' | 'answer_form'>,
  range: BatchPartRange,
  ends: PartEnds,
): Promise<BatchPartResult> {
  const { blobs } = context
  const errors: Buffer[] = []
  const isInvalid = answerCheck(answer_form)
  let sums: Sums = NO_SUMS
  let bytes = 0
  async function* output(): AsyncGenerator<Buffer> {
    for await (const line of linesOf(blobs, input, lineBytesMax, range)) {
      const outcome = await endOf(line, ends)
      sums = sumOf([sums, sumsOf(outcome, isInvalid(outcome))])
      const { customId } = await runYielding(readLine(line, { dialect, lineBytesMax }))
      const value = outcomeLine(dialect, childJobId(ends.id, String(line.number)), customId, outcome)
      const isError = dialect === 'requests' && outcome.type !== 'completed'
      for (const piece of writeJson(value)) {
        const text = Buffer.from(piece)
        if (isError) errors.push(text)
        else {
          bytes += text.length
          yield text
        }
      }
      if (isError) errors.push(LINE_FEED)
      else {
        bytes += LINE_FEED.length
        yield LINE_FEED
      }
    }
  }
  await blobs.put(partBlob(ends.id, 'output'), output())
  const joined = Buffer.concat(errors)
  await blobs.put(partBlob(ends.id, 'errors'), joined)
  return { ...sums, output_bytes: bytes, error_bytes: joined.length }
}

const LINE_FEED = Buffer.from('\n')

async function endOf({ number }: Line, { id, refused, undone, composition }: PartEnds): Promise<Outcome> {
  const refusal = refused[number]
  if (refusal) return { type: 'failed', error: refusal }
  const end = await composition.endOf(childJobId(id, String(number)), id)
  return end ? outcomeOf(end) : undone
}

/** Returns a function that checks whether an answer is invalid for the table of the batch. Example: an answer that is none of the choices. */
function answerCheck(form: string | undefined): (outcome: Outcome) => boolean {
  const allowed = formIn(form)
  if (!allowed.choices && !allowed.columns) return () => false
  const valuesOf = valuesIn(allowed)
  return (outcome) => outcome.type === 'completed' && 'problem' in valuesOf(answerText(outcome.result) ?? '')
}

function sumsOf(outcome: Outcome, isInvalid: boolean): Sums {
  const usage = outcome.type === 'completed' ? usageOf(outcome.usage) : NO_SUMS.usage
  return { counts: { ...NO_SUMS.counts, [outcome.type]: 1, invalid: Number(isInvalid) }, usage }
}

export type Outcome =
  | { readonly type: 'completed'; readonly result: unknown; readonly usage: unknown }
  | { readonly type: 'failed'; readonly error: ErrorBody }
  | { readonly type: 'cancelled' }
  | { readonly type: 'expired' }

export function outcomeOf(end: ChildEnd): Outcome {
  switch (end.state) {
    case 'completed':
      return { type: 'completed', result: end.result, usage: end.usage }
    case 'failed':
      return { type: 'failed', error: end.error }
    default:
      return { type: end.state }
  }
}

/**
 * Returns the line of a result file for one request.
 *
 * @param id Id of the request's job. For a refused request, which has no job, the id that its job would have had
 */
export function outcomeLine(dialect: BatchDialect, id: string, customId: string, outcome: Outcome): object {
  if (dialect === 'messages') return { custom_id: customId, result: messagesResult(id, outcome) }
  return { id: id.replace('job_', 'batch_req_'), custom_id: customId, ...requestResult(id, outcome) }
}

function requestResult(id: string, outcome: Outcome): object {
  switch (outcome.type) {
    case 'completed':
      return { response: { status_code: 200, request_id: id, body: outcome.result }, error: null }
    case 'failed': {
      const error = ServiceError.fromBody(outcome.error)
      const response = { status_code: openaiStatus(error), request_id: id, body: openaiErrorBody(error) }
      return { response, error: null }
    }
    case 'cancelled':
      return {
        response: null,
        error: { code: 'batch_cancelled', message: 'The request was cancelled before it was answered.' },
      }
    case 'expired': {
      const message = 'This request could not be executed before the completion window expired.'
      return { response: null, error: { code: 'batch_expired', message } }
    }
  }
}

function messagesResult(id: string, outcome: Outcome): object {
  switch (outcome.type) {
    case 'completed':
      return { type: 'succeeded', message: outcome.result }
    case 'failed':
      return { type: 'errored', error: messagesErrorBody(ServiceError.fromBody(outcome.error), id) }
    case 'cancelled':
      return { type: 'canceled' }
    case 'expired':
      return { type: 'expired' }
  }
}

export interface Sums {
  readonly counts: BatchCounts
  readonly usage: BatchUsage
}

export const NO_SUMS: Sums = {
  counts: { completed: 0, failed: 0, cancelled: 0, expired: 0, invalid: 0 },
  usage: { input_tokens: 0, cached_tokens: 0, output_tokens: 0, reasoning_tokens: 0 },
}

export function sumOf(all: readonly Sums[]): Sums {
  return all.reduce((a, b) => ({ counts: added(a.counts, b.counts), usage: added(a.usage, b.usage) }), NO_SUMS)
}

function added<T extends object>(a: T, b: T): T {
  const amounts = Object.entries(a).map(([name, amount]) => [name, amount + ((b as Record<string, number>)[name] ?? 0)])
  return Object.fromEntries(amounts) as T
}

export function usageOf(said: unknown): BatchUsage {
  const usage = (said ?? {}) as Record<string, unknown>
  const details = (...names: string[]) =>
    names.map((name) => usage[name] as Record<string, unknown> | undefined).find((found) => found != null) ?? {}
  const number = (from: Record<string, unknown>, ...names: string[]) => {
    const found = names.map((name) => from[name]).find((value) => Number.isInteger(value))
    return (found as number | undefined) ?? 0
  }
  const input = details('input_tokens_details', 'prompt_tokens_details')
  const output = details('output_tokens_details', 'completion_tokens_details')
  return {
    input_tokens: number(usage, 'input_tokens', 'prompt_tokens'),
    cached_tokens: number(input, 'cached_tokens') || number(usage, 'cache_read_input_tokens', 'cached_tokens'),
    output_tokens: number(usage, 'output_tokens', 'completion_tokens'),
    reasoning_tokens: number(output, 'reasoning_tokens'),
  }
}
