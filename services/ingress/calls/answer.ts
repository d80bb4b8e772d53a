/*
 * Answers a call whose endpoint creates jobs: validates the call, submits the job, then streams or collects the output.
 * `shared/capacity/capacity.ts` lists the numbered gates.
 *
 * 1. If the endpoint or the caller requires it, then the job is durable, and `durable.ts` answers. Otherwise the job is
 *    attached to the call (docs/internals/design.md, Owners).
 * 2. The endpoint prepares the body in the internal form of its kind. For the code tool, the run counts against the limit
 *    of the caller's end user (gate 4).
 * 3. Tokens, budget and a concurrent call of the project are reserved (gates 5 and 6). The job is submitted to
 *    `AttachedJobs`.
 * 4. Output is sent as a stream, as bytes, or as a whole. If the caller disconnects, then the job is cancelled.
 * 5. As soon as the token counts are known, they replace the reservation in the limits. When the call ends, the access-log line
 *    and the entry of the usage ledger are written (docs/operate/usage.md).
 *
 * The invariant: a job never outlives its call, and each reservation is settled or released once.
 */

import type { Metered } from '#schemas/usage.ts'
import { retryMsMaxOf } from '#services/ingress/body/body.ts'
import { type Admission, admitCall } from '#shared/capacity/capacity.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { traceIdOf } from '#shared/telemetry/context.ts'
import { boundedText } from '#shared/usage/request-log.ts'
import { type EndedCall, entryOf, Meter } from '#shared/usage/usage.ts'
import { type Call, type IngressContext, type JobEndpoint, type PreparedCall, sendBytes, sendStream } from './call.ts'
import { CallBodies } from './call-bodies.ts'
import { attachedIdOf } from './call-log.ts'
import { answerDurable } from './durable.ts'
import { encodeOf, takeBody } from './endpoint.ts'
import { JobOptions, readPreferences, refuseJobOptions } from './job-options.ts'

const CHAR_BYTES = 2
/**
 * Maximum memory in bytes of a request body that stays in memory while its call runs. A larger body is written to a
 * blob.
 */
const IN_MEMORY_BYTES_MAX = 1024 * 1024

/** The call of each attached job (a job that is held in memory, not stored), for the list of running and waiting calls. */
const callsOfJobs = new WeakMap<AttachedJob, Pick<Call, 'key' | 'path'>>()

export function callOfJob(job: AttachedJob): Pick<Call, 'key' | 'path'> | undefined {
  return callsOfJobs.get(job)
}

/**
 * Answers a call that creates a job.
 *
 * @throws ServiceError if the call is refused or fails, before or after output
 */
export function answerCall(context: IngressContext, call: Call, endpoint: JobEndpoint, body: unknown): Promise<void> {
  const { key, facts, headers, advice } = call
  const preferences = readPreferences(headers, body)
  const isDurable =
    preferences.isDurable || endpoint.isDurable === true || endpoint.isStored?.(context, body, call) === true
  const options = isDurable ? JobOptions.of(headers, call.jobFields) : undefined
  if (!options) refuseJobOptions(headers, call.jobFields, advice.durable)
  else if (!preferences.isAsync) options.refuseWaiting(advice.async)
  // Promises are chained instead of awaited. A suspended async function would keep the body in memory until the answer
  // is complete.
  const preparing = Promise.try(() => endpoint.prepare(context, call, body))
  const onRefused = (error: unknown) => {
    CallBodies.refused(context, call, endpoint.kind, body)
    throw error
  }
  return preparing.then((prepared) => {
    facts.model = prepared.model
    facts.user_id = prepared.userId
    context.limits.countUser(key, prepared.userId)
    noteLoweredLimit(context, call, body, prepared)
    if (endpoint.fields) noteUnknownFields(call, endpoint.fields, body)
    if (options) return answerDurable(context, call, endpoint, prepared, body, preferences, options)
    const { pool } = endpoint.kind
    const admitted = { pool, model: prepared.model, body: prepared.body }
    const admitting = admitCall(context, key, admitted, () => call.reply.disconnectedOrDraining)
    const bodies = CallBodies.of(context, call, endpoint.kind, { body, hasAnswer: !prepared.isBytes })
    if (!admitting) return answerAttached(context, call, endpoint, prepared, { admission: undefined, bodies })
    return admitting.then(
      ({ admission, leave }) => answerAttached(context, call, endpoint, prepared, { admission, bodies }).finally(leave),
      (error: unknown) => {
        bodies?.refused()
        throw error
      },
    )
  }, onRefused)
}

interface OutputLimits {
  readonly max_tokens?: unknown
  readonly max_completion_tokens?: unknown
  readonly max_output_tokens?: unknown
}

/** Reports an output limit that the model's limit lowered, in a header of the answer and in the access log. */
function noteLoweredLimit({ models }: IngressContext, { facts, reply }: Call, body: unknown, prepared: PreparedCall) {
  const ceiling = models.find(prepared.model)?.limits.max_output_tokens
  const { max_tokens: granted } = (prepared.body ?? {}) as OutputLimits
  if (ceiling === undefined || granted !== ceiling) return
  const { max_output_tokens, max_tokens, max_completion_tokens } = (body ?? {}) as OutputLimits
  const asked = [max_output_tokens, max_tokens, max_completion_tokens]
  if (!asked.some((limit) => typeof limit === 'number' && limit > ceiling)) return
  facts.max_tokens = ceiling
  reply.setHeader('x-max-tokens', String(ceiling))
}

/** Fields of calls that create durable jobs, valid for every endpoint. */
const JOB_FIELDS: ReadonlySet<string> = new Set(['background', 'store'])
const FIELD_NAME = /^[\w.-]{1,64}$/
const UNKNOWN_FIELDS_MAX = 10

/**
 * Names the fields of a body that the API does not define, in a header of the answer and in the request log. Such a field is not refused, because a
 * server with the same API may define it. A misspelled field would otherwise have no effect and no error.
 */
function noteUnknownFields({ reply, facts }: Call, known: object, body: unknown): void {
  let unknown: string[] | undefined
  for (const name in body as Record<string, unknown> | null) {
    if (Object.hasOwn(known, name) || JOB_FIELDS.has(name)) continue
    unknown ??= []
    if (FIELD_NAME.test(name) && unknown.length < UNKNOWN_FIELDS_MAX) unknown.push(name)
  }
  if (!unknown?.length) return
  const names = unknown.join(', ')
  reply.setHeader('x-unknown-parameters', names)
  facts.unknown_parameters = boundedText(names)
}

async function answerAttached(
  context: IngressContext,
  call: Call,
  endpoint: JobEndpoint,
  prepared: PreparedCall,
  { admission, bodies }: { readonly admission: Admission | undefined; readonly bodies: CallBodies | undefined },
): Promise<void> {
  const { reply, facts, requestId } = call
  if (reply.isDisconnected) return admission?.release()
  // The body is released when the job is submitted.
  const formatCheck = prepared.stream ? undefined : endpoint.kind.formatCheck?.(prepared.body)
  const job = await submitJob(context, call, endpoint, prepared).catch((error: unknown) => {
    admission?.release()
    bodies?.refused()
    throw error
  })
  facts.job_id = job.id
  callsOfJobs.set(job, { key: call.key, path: endpoint.path })
  // SDKs cancel a call by closing its connection (docs/internals/protocol.md, Disconnects).
  const cancel = () => context.jobs.cancel(job, reply.refusal?.toBody())
  reply.disconnected.addEventListener('abort', cancel, { once: true })
  if (reply.disconnected.aborted) cancel()
  reply.accepted(job.id)
  const encode = {
    ...encodeOf(prepared, requestId),
    call_id: job.id.slice('job_'.length),
    created_at: Math.floor(job.envelope.created_at_ms / 1_000),
  }
  const answer = endpoint.kind.answer(endpoint.path)
  const stream = prepared.stream ? answer.open?.(encode) : undefined
  const meter = new Meter()
  const see = (event: unknown) => {
    meter.see(event)
    bodies?.see(event)
    if ((event as { usage?: unknown }).usage !== undefined) reportTokens(call, meter.metered, admission)
  }
  let end: EndedCall['end'] = 'failed'
  try {
    if (stream) await sendStream(reply, job, stream, { onEvent: see, waitsFor: () => context.jobs.waitOf(job) })
    else if (prepared.isBytes && answer.bytes)
      await sendBytes(reply, job, answer.bytes.type(encode), answer.bytes.of, see)
    else {
      reply.open(prepared.isText ? 'text' : 'json')
      const events = await takeAll(job, see)
      const ignored = formatCheck?.ignoredBy(events)
      if (ignored) {
        facts.format_ignored = ignored
        reply.setHeader('x-format-ignored', ignored)
      }
      if (!reply.isDisconnected)
        await reply.whole(await (answer.write?.(events, encode) ?? answer.whole(events, encode)))
    }
    end = 'completed'
  } catch (error) {
    if (ServiceError.from(error).code === 'job_cancelled') end = 'cancelled'
    throw error
  } finally {
    const ended = reply.isDisconnected ? 'cancelled' : end
    recordUsage(context, call, endpoint, { metered: meter.metered, end: ended }, admission)
    void bodies?.end(ended, answer, encode)
    recordJob(context, call, job, end)
    context.jobs.cancel(job)
  }
}

/**
 * Submits the job. Afterwards, the memory reservation of the call shrinks to the size of the queue record, because a
 * large body is then in a blob.
 */
async function submitJob(
  context: IngressContext,
  { key, requestId, held, headers, traceparent }: Call,
  { kind }: JobEndpoint,
  prepared: PreparedCall,
): Promise<AttachedJob> {
  const body = takeBody(prepared)
  const { name, pool, merge, isOutput } = kind
  const answerBytesMax = prepared.answerBytesMax ?? kind.answerBytesMax
  const tenant = projectIdOf(key)
  // A small body stays in memory while its call runs. A large body is written to a blob. While more than half of the memory budget is used, every
  // body is written to a blob.
  const isSmall = held.bytes <= IN_MEMORY_BYTES_MAX && context.budget.isHalfFree
  const heldBytes = isSmall ? held.bytes : undefined
  const stream = prepared.stream || prepared.isBytes === true
  const spec = {
    ...prepared,
    id: attachedIdOf(requestId),
    stream,
    pool,
    kind: name,
    merge,
    isOutput,
    answerBytesMax,
    body,
    tenant,
    requestId,
    heldBytes,
  }
  const retryMsMax = retryMsMaxOf(headers['user-agent'])
  context.submitQueue.recordCall(tenant)
  const job = await context.jobs.submit({ ...spec, traceparent, retryMsMax })
  const { stored } = job
  if (!stored || !('value' in stored)) held.shrink(stored && 'json' in stored ? stored.json.length * CHAR_BYTES : 0)
  return job
}

async function takeAll(job: AttachedJob, onEvent: (event: unknown) => void): Promise<unknown[]> {
  const all: unknown[] = []
  for (let events = await job.next(); events; events = await job.next()) {
    for (const event of events) {
      onEvent(event)
      all.push(event)
    }
  }
  return all
}

function recordJob({ metrics }: IngressContext, { facts }: Call, job: AttachedJob, end: EndedCall['end']): void {
  const { created_at_ms, pool, model, traceparent } = job.envelope
  const labels = { pool, model }
  const traceId = traceIdOf(traceparent)
  facts.attempts = job.attempt
  if (job.failedAttempts) facts.failed_attempts = job.failedAttempts
  if (job.worker !== undefined) facts.worker = job.worker
  if (job.server !== undefined) facts.server = job.server
  if (job.startedAtMs !== undefined) {
    facts.queue_ms = job.startedAtMs - created_at_ms
    metrics.queueSeconds.observe(labels, facts.queue_ms / 1_000, traceId)
  }
  if (job.firstOutputAtMs !== undefined) {
    facts.first_output_ms = job.firstOutputAtMs - created_at_ms
    const isStream = job.envelope.stream
    metrics.firstOutputSeconds.observe({ ...labels, stream: String(isStream) }, facts.first_output_ms / 1_000, traceId)
    const { output_tokens: tokens = 0 } = facts
    const outputMs = Date.now() - job.firstOutputAtMs
    // Without a stream, all output arrives at the end, so the time per token cannot be measured.
    if (tokens > 1 && end === 'completed' && isStream)
      metrics.outputTokenSeconds.observe(labels, outputMs / 1_000 / (tokens - 1), traceId)
  }
}

/** Replaces the reserved tokens of a call with its counted tokens. A second report changes only the facts. */
function reportTokens({ facts }: Call, metered: Metered, admission: Admission | undefined): void {
  const { input_tokens, output_tokens } = metered
  if (input_tokens + output_tokens === 0) return
  Object.assign(facts, { input_tokens, output_tokens })
  admission?.useTokens(input_tokens + output_tokens)
}

function recordUsage(
  { models, metrics, usage }: IngressContext,
  call: Call,
  { path, kind: { pool } }: JobEndpoint,
  ended: Pick<EndedCall, 'metered' | 'end'>,
  admission: Admission | undefined,
): void {
  reportTokens(call, ended.metered, admission)
  const { key, facts } = call
  const model = facts.model ?? ''
  const whose = { project: projectIdOf(key), keyId: key.id, pool, model, endpoint: path }
  // The final status of the call is not known yet, so this entry counts no failure. The call log later adds an entry with the failure.
  const entry = {
    ...entryOf({ ...whose, ...ended, endedAtMs: Date.now() }, models.priceOf({ pool, model })),
    failed: 0,
  }
  facts.cached_input_tokens = entry.cachedInputTokens
  facts.cost_nanos = entry.costNanos
  metrics.addUsage(entry)
  const entered = usage?.add(entry) ?? Promise.resolve()
  admission?.settle(entry.costNanos, entered)
}
