import { isUtf8 } from 'node:buffer'
import { createHash, type Hash } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isDeepStrictEqual } from 'node:util'
import { JobFields, Webhook } from '#schemas/jobs.ts'
import type { FormField } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { writeJson } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { checkWebhookUrl } from '#shared/outbound/guard.ts'
import type { IdempotencyKey } from '#shared/store/store.ts'
import type { Call, IngressContext } from './call.ts'
import { isJobId, requireJobs } from './job-object.ts'

export interface Preferences {
  readonly isDurable: boolean
  /** True if the call is answered with 202 and the job. If false, then the call waits for the result. */
  readonly isAsync: boolean
  /** Maximum time in ms for which a call waits for the result before it is answered with 202. */
  readonly waitMs: number
  readonly idempotencyKey: string | undefined
}

/** Maximum value in seconds of `wait` in the Prefer header (RFC 7240) and of `?wait=` in a query. */
export const WAIT_SECONDS_MAX = 60
/**
 * Maximum time in ms for which an idempotency key refers to its job. A shorter retention of jobs shortens this time.
 */
const IDEMPOTENCY_TTL_MS = 24 * 3_600_000

/**
 * Reads `Prefer: respond-async, wait=N` (RFC 7240), `Idempotency-Key`, and the body fields `background` and `store`.
 * Malformed preferences are ignored, as RFC 7240 requires.
 *
 * @throws ServiceError `invalid_request` for a malformed key; `invalid_type` for fields that are not booleans
 */
export function readPreferences(headers: IncomingHttpHeaders, body: unknown): Preferences {
  const preferences = String(headers.prefer ?? '')
  const wait = /(?:^|[,;])\s*wait *= *"?(\d{1,9})"?\s*(?:[,;]|$)/i.exec(preferences)?.[1]
  const key = headers['idempotency-key']
  const idempotencyKey = key === undefined ? undefined : readIdempotencyKey(key)
  const isAsync = prefersAsync(headers) || readFlag(body, 'background')
  return {
    isDurable: isAsync || idempotencyKey !== undefined || readFlag(body, 'store'),
    isAsync,
    waitMs: Math.min(Number(wait ?? 0), WAIT_SECONDS_MAX) * 1_000,
    idempotencyKey,
  }
}

export function prefersAsync({ prefer }: IncomingHttpHeaders): boolean {
  return /(?:^|[,;])\s*respond-async\s*(?:[,;]|$)/i.test(String(prefer ?? ''))
}

const JOB_SUBMISSIONS = /^\/v1\/(jobs|files|batches|messages\/batches)(\/|$)/

/**
 * Whether the path and the headers of a call request a durable job, a file or a batch. The body is not read yet, so its field
 * `background` is not considered.
 */
export function isJobSubmission({ path, headers }: Pick<Call, 'path' | 'headers'>): boolean {
  if (JOB_SUBMISSIONS.test(path)) return true
  return headers['idempotency-key'] !== undefined || prefersAsync(headers)
}

/**
 * Reads an `Idempotency-Key` header: 1 to 255 visible ASCII characters, with or without quotes
 * (docs/internals/protocol.md, Idempotency).
 *
 * @throws ServiceError `invalid_request` for any other value
 */
export function readIdempotencyKey(header: string | string[] | undefined): string | undefined {
  if (header === undefined) return undefined
  const key = String(header).replace(/^"(.*)"$/, '$1')
  if (/^[\x21-\x7e]{1,255}$/.test(key)) return key
  const message = 'The Idempotency-Key must be 1 to 255 visible ASCII characters.'
  throw new ServiceError('invalid_request', message, { param: 'Idempotency-Key' })
}

/**
 * Returns the idempotency key of a call, with a fingerprint of method, path and body (docs/internals/protocol.md,
 * Idempotency).
 *
 * @param retentionMs Retention of ended jobs. The key expires no later than its job
 */
export async function idempotencyOf(
  key: string | undefined,
  { method, path }: Pick<Call, 'method' | 'path'>,
  body: unknown,
  retentionMs: number = IDEMPOTENCY_TTL_MS,
): Promise<IdempotencyKey | undefined> {
  if (key === undefined) return undefined
  const hash = createHash('sha256').update(`${path}\n`)
  await runYielding(hashCanonical(hash, withoutNulls(body)))
  const fingerprint = hash.digest('hex')
  return { scope: `${method} ${path}`, key, fingerprint, keepMs: Math.min(IDEMPOTENCY_TTL_MS, retentionMs) }
}

/** Fields of a request whose value is an object. Null fields inside such an object count as absent, like null fields of the request. */
const OBJECT_FIELDS: ReadonlySet<string> = new Set(['body', 'job', 'webhook'])

/**
 * Removes null fields from a request, because null counts as absent. Nulls inside other values, such as JSON Schemas,
 * have a meaning and stay.
 */
function withoutNulls(request: unknown): unknown {
  if (typeof request !== 'object' || request === null || Array.isArray(request)) return request
  const given = Object.entries(request).filter(([, value]) => value !== null && value !== undefined)
  return Object.fromEntries(given.map(([name, value]) => [name, OBJECT_FIELDS.has(name) ? withoutNulls(value) : value]))
}

/**
 * Hashes JSON with sorted keys, so that the order of fields does not change the hash. Recursion cannot exhaust the
 * stack, because the nesting of bodies is limited.
 */
function* hashCanonical(hash: Hash, body: unknown): Generator<undefined, void> {
  for (const piece of writeJson(body, { sortsKeys: true })) {
    hash.update(piece)
    yield
  }
}

function readFlag(body: unknown, field: 'background' | 'store'): boolean {
  const value = (body as Record<string, unknown> | null)?.[field] ?? false
  if (typeof value === 'boolean') return value
  throw new ServiceError('invalid_type', `Invalid type for '${field}': expected a boolean.`, { param: field })
}

/**
 * Options of a durable job (docs/guides/jobs.md, Submit). A caller gives them in the body of `POST /v1/jobs`, in form fields,
 * in a WebSocket frame, or in headers of any HTTP call:
 *
 *   x-job-priority: low                              x-job-run-at: 1790000000
 *   x-job-metadata: {"report":"2026-11"}             x-job-expires-after-seconds: 7200
 *   x-job-webhook-url: https://example.com/hook      x-job-start-within-seconds: 600
 *   x-job-webhook-events: job.completed,job.failed   x-job-parent-id: job_…
 */

const PREFIX = 'x-job-'
/**
 * Name of the response header with the id of the job. A request may contain this header too, because some clients send it back with their next
 * request.
 */
const JOB_ID_HEADER = 'x-job-id'
/**
 * Maximum characters of the metadata header, which suffice for 16 pairs of 64 and 512 characters, even if every
 * character is escaped.
 */
const METADATA_CHARS_MAX = 64 * 1024
const WEBHOOK_EVENTS_DEFAULT = ['job.completed', 'job.failed', 'job.cancelled', 'job.expired']
const RUN_AHEAD_MS_MAX = 7 * 24 * 3_600_000

export interface DurableOptions {
  readonly idempotencyKey: string | undefined
  /**
   * True if the caller receives the job object instead of the result. The idempotency key then refers to the job even
   * after the job has failed.
   */
  readonly isAsync?: boolean | undefined
  readonly deadlineInMs: number
  readonly startInMs?: number | undefined
  readonly runAtMs?: number | undefined
  readonly priority?: 'normal' | 'low' | undefined
  readonly parentId?: string | undefined
  readonly metadata?: Record<string, string> | undefined
  readonly webhook?: { url: string; events: string[] } | undefined
}

/**
 * Maximum pairs of metadata per job (docs/reference/compatibility.md, Chat requests), because lists of jobs contain the
 * metadata of each job.
 */
const METADATA_PAIRS_MAX = 16

export function boundMetadata(metadata: Record<string, string> | undefined): Record<string, string> | undefined {
  if (metadata === undefined || Object.keys(metadata).length <= METADATA_PAIRS_MAX) return metadata
  const message = `Invalid 'metadata': expected at most ${METADATA_PAIRS_MAX} pairs.`
  throw new ServiceError('invalid_value', message, { param: 'metadata' })
}

type ReadHeader = (text: string, header: string) => unknown

const HEADERS = (
  [
    ['metadata', readMetadata],
    ['webhook.url', asText],
    ['webhook.events', (text) => text.split(',').map((event) => event.trim())],
    ['priority', asText],
    ['expires_after_seconds', asNumber],
    ['start_within_seconds', asNumber],
    ['run_at', asNumber],
    ['parent_id', asText],
  ] satisfies [path: string, read: ReadHeader][]
).map(([path, read]) => ({ path, read: read as ReadHeader, name: PREFIX + path.replaceAll(/[._]/g, '-') }))

const NOTHING: JobFields = {}

export class JobOptions {
  readonly fields: JobFields
  readonly #headers: IncomingHttpHeaders
  readonly #ofHeaders: ReadonlySet<string>

  /**
   * Merges and validates the options of a call.
   *
   * @param given Options from a body, a form or a WebSocket frame
   * @throws ServiceError a 400 with the header or the field; `invalid_value` if header and body differ
   */
  static of(headers: IncomingHttpHeaders, given: object): JobOptions {
    const fields = Object.keys(given).length === 0 ? NOTHING : readFields(given)
    const ofHeaders = readHeaders(headers)
    for (const [field, value] of Object.entries(ofHeaders)) {
      if (!Object.hasOwn(fields, field) || isDeepStrictEqual(fields[field as keyof JobFields], value)) continue
      const header = headerOf(field, headers)
      const message = `'${field}' is given twice with different values, once in the header '${header}'.`
      throw new ServiceError('invalid_value', message, { param: header })
    }
    return new JobOptions({ ...fields, ...ofHeaders }, headers, new Set(Object.keys(ofHeaders)))
  }

  private constructor(fields: JobFields, headers: IncomingHttpHeaders, ofHeaders: ReadonlySet<string>) {
    this.fields = fields
    this.#headers = headers
    this.#ofHeaders = ofHeaders
  }

  /**
   * Returns the value from which the idempotency fingerprint is computed. Options are included, because calls with
   * different options are different requests (docs/internals/protocol.md, Idempotency).
   */
  joinedWith(body: unknown): unknown {
    return Object.keys(this.fields).length === 0 ? body : { body, job: this.fields }
  }

  get isOfHeaders(): boolean {
    return this.#ofHeaders.size > 0
  }

  refuse(how: string): void {
    const [field] = Object.keys(this.fields)
    if (field !== undefined) throw this.#error('invalid_request', field, `is for durable jobs only. ${how}`)
  }

  refuseWaiting(how: string): void {
    if (this.fields.run_at != null)
      throw this.#error('invalid_request', 'run_at', `cannot be combined with waiting for the result. ${how}`)
  }

  /**
   * Refuses unknown `x-job-` headers, which would otherwise be ignored without an error.
   *
   * @throws ServiceError `unsupported_parameter` with the name of the header
   */
  refuseUnknownHeaders(): void {
    for (const name of Object.keys(this.#headers)) {
      if (!name.startsWith(PREFIX) || name === JOB_ID_HEADER || HEADERS.some((header) => header.name === name)) continue
      const param = excerpt(name)
      throw new ServiceError('unsupported_parameter', `Unknown header: '${param}'.`, { param })
    }
  }

  /**
   * Converts the options to the fields of the job that the store expects. Defaults and limits of this deployment are
   * applied.
   *
   * @param deadlineInMs Default deadline
   * @throws ServiceError for options that this deployment does not allow, and for an unknown parent job
   */
  async resolve(context: IngressContext, tenant: string, deadlineInMs: number): Promise<ResolvedOptions> {
    const { fields } = this
    this.refuseUnknownHeaders()
    try {
      const start = fields.start_within_seconds
      const resolved = {
        deadlineInMs: deadlineOf(context, fields) ?? deadlineInMs,
        startInMs: start == null ? undefined : start * 1_000,
        runAtMs: runAtOf(fields),
        priority: fields.priority ?? undefined,
        metadata: boundMetadata(fields.metadata ?? undefined),
        webhook: webhookOf(context, fields),
        parentId: fields.parent_id ?? undefined,
      }
      if (resolved.parentId !== undefined) await requireParent(context, tenant, resolved.parentId)
      return resolved
    } catch (error) {
      const [field = ''] = (error instanceof ServiceError ? error.param : undefined)?.split('.') ?? []
      throw this.#ofHeaders.has(field) ? renamed(error as ServiceError, this.#headers) : error
    }
  }

  #error(code: 'invalid_request', field: string, problem: string): ServiceError {
    const param = this.#ofHeaders.has(field) ? headerOf(field, this.#headers) : field
    return new ServiceError(code, `'${param}' ${problem}`, { param })
  }
}

type ResolvedOptions = Omit<DurableOptions, 'idempotencyKey' | 'isAsync'>

export function jobFieldsOf(fields: object): object {
  const entries = Object.entries(fields).filter(([name]) => Object.hasOwn(JobFields.shape, name))
  return Object.fromEntries(entries)
}

/**
 * Refuses options on a call that creates no durable job. Otherwise the options would be ignored without an error.
 *
 * @param how Advice on how to create a durable job
 * @throws ServiceError `invalid_request`, or the errors of {@link JobOptions.of}
 */
export function refuseJobOptions(headers: IncomingHttpHeaders, given: object, how: string): void {
  const isGiven = Object.keys(given).length > 0 || HEADERS.some(({ name }) => headers[name] !== undefined)
  if (isGiven) JobOptions.of(headers, given).refuse(how)
}

export function refuseJobHeaders(headers: IncomingHttpHeaders, why: string): void {
  const given = HEADERS.find(({ name }) => headers[name] !== undefined)
  if (given) throw new ServiceError('invalid_request', `'${given.name}': ${why}`, { param: given.name })
}

function readFields(given: object): JobFields {
  refuseUnknown(Webhook, (given as { webhook?: unknown }).webhook, 'webhook.')
  return definedOf(parseBody(JobFields, given, 'openai'))
}

function headerOf(field: string, headers: IncomingHttpHeaders): string {
  const whole = HEADERS.find(({ path }) => `${field}.`.startsWith(`${path}.`) || field.startsWith(`${path}[`))
  const part = HEADERS.find(({ path, name }) => path.startsWith(`${field}.`) && headers[name] !== undefined)
  return (whole ?? part)?.name ?? field
}

function readHeaders(headers: IncomingHttpHeaders): JobFields {
  const raw: Record<string, unknown> = {}
  for (const { path, name, read } of HEADERS) {
    const text = headers[name]
    if (text === undefined) continue
    const value = read(String(text), name)
    const [field = '', member] = path.split('.')
    if (member === undefined) raw[field] = value
    else raw[field] = { ...(raw[field] as object | undefined), [member]: value }
  }
  if (Object.keys(raw).length === 0) return NOTHING
  try {
    return definedOf(parseBody(JobFields, raw, 'openai'))
  } catch (error) {
    throw error instanceof ServiceError ? renamed(error, headers) : error
  }
}

function renamed(error: ServiceError, headers: IncomingHttpHeaders): ServiceError {
  const { code, message, param } = error
  if (param === null) return error
  const header = headerOf(param, headers)
  const named = message.includes(`'${param}'`) ? message.replace(`'${param}'`, `'${header}'`) : `${header}: ${message}`
  return new ServiceError(code, named, { cause: error, param: header })
}

function asText(text: string): string {
  return text
}

function asNumber(text: string): number | string {
  return /^\d{1,15}$/.test(text) ? Number(text) : text
}

/** Parses the JSON in a header. Node decodes headers as Latin-1, so UTF-8 in the header is decoded here. */
function readMetadata(text: string, header: string): unknown {
  const bytes = Buffer.from(text, 'latin1')
  try {
    if (text.length <= METADATA_CHARS_MAX) return JSON.parse(isUtf8(bytes) ? bytes.toString() : text)
  } catch {
    // If the value is not JSON, then the error below is thrown.
  }
  const expected = `expected a JSON object whose values are strings, of at most ${METADATA_CHARS_MAX} characters`
  throw new ServiceError('invalid_value', `Invalid '${header}': ${expected}.`, { param: header })
}

function deadlineOf({ config }: IngressContext, { expires_after_seconds }: JobFields): number | undefined {
  if (expires_after_seconds == null) return undefined
  const ms = expires_after_seconds * 1_000
  if (ms <= config.jobDeadlineMaxMs) return ms
  const most = Math.floor(config.jobDeadlineMaxMs / 1_000)
  const param = 'expires_after_seconds'
  const message = `Invalid '${param}': integer above maximum value. Expected a value <= ${most}, but got ${expires_after_seconds} instead.`
  throw new ServiceError('integer_above_max_value', message, { param })
}

function runAtOf({ run_at }: JobFields): number | undefined {
  if (run_at == null) return undefined
  const ms = run_at * 1_000
  if (ms <= Date.now() + RUN_AHEAD_MS_MAX) return ms
  const message = 'A job may be scheduled at most 7 days ahead. Times are unix seconds.'
  throw new ServiceError('invalid_value', message, { param: 'run_at' })
}

function webhookOf({ config }: IngressContext, { webhook }: JobFields): { url: string; events: string[] } | undefined {
  if (!webhook) return undefined
  checkWebhookUrl(webhook.url, { allowPrivate: config.webhookAllowPrivate })
  return { url: webhook.url, events: webhook.events ?? WEBHOOK_EVENTS_DEFAULT }
}

async function requireParent(context: IngressContext, tenant: string, id: string): Promise<void> {
  const isThere = isJobId(id) && (await requireJobs(context).has(tenant, id))
  if (!isThere) throw new ServiceError('invalid_value', 'The parent job does not exist.', { param: 'parent_id' })
}

function definedOf(fields: JobFields): JobFields {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value != null))
}

/**
 * Reads job options from form fields, with the field names of `POST /v1/jobs`. Clients write objects and lists in
 * several ways:
 *
 *   priority=low · run_at=1790000000
 *   metadata={"report":"2026-11"} · metadata[report]=2026-11
 *   webhook={"url":"https://…"} · webhook[url]=https://… webhook[events][]=job.completed
 *
 * An empty field counts as absent. A number that cannot be parsed stays text, which the schema refuses.
 */

const NUMBERS: ReadonlySet<string> = new Set(['run_at', 'expires_after_seconds', 'start_within_seconds'])
const OBJECTS: ReadonlySet<string> = new Set(['metadata', 'webhook'])
/** Maximum characters of `metadata` and `webhook` as JSON, because longer JSON could be nested deeply. */
const OBJECT_CHARS_MAX = 64 * 1024

/** Field name: `name`, `name[member]`, `name[member][]` or `name[member][0]`. */
const NAME = /^([a-z_]{1,64})(?:\[([^\]]{1,256})\])?(\[\d{0,3}\])?$/

/**
 * Separates the job options from the other fields of a form.
 *
 * @throws ServiceError `invalid_value` for invalid JSON, and for a field that is given twice or in two notations
 */
export function readJobFields(fields: readonly FormField[]): {
  jobFields: Record<string, unknown>
  others: readonly FormField[]
} {
  const jobFields: Record<string, unknown> = {}
  const others = fields.filter((field) => !addField(jobFields, field))
  return { jobFields, others }
}

function addField(jobFields: Record<string, unknown>, { name, value }: FormField): boolean {
  const [, field = '', member, index] = NAME.exec(name) ?? []
  if (!Object.hasOwn(JobFields.shape, field)) return false
  if (value === '') return true
  const isMember = member !== undefined && OBJECTS.has(field)
  if (!isMember && (member ?? index) !== undefined) throw invalid(name, 'is neither an object nor a list')
  const known = jobFields[field]
  if (!isMember && known !== undefined) throw twice(name)
  jobFields[field] = isMember
    ? withMember(known, member, index !== undefined, { name, value })
    : readValue(field, value)
  return true
}

function withMember(object: unknown = {}, member: string, isItem: boolean, { name, value }: FormField): object {
  if (typeof object !== 'object') throw twice(name)
  const known = Object.entries(object ?? {}).find(([key]) => key === member)?.[1]
  if (known !== undefined && !(isItem && Array.isArray(known))) throw twice(name)
  return { ...object, [member]: isItem ? [...(known ?? []), value] : value }
}

function readValue(field: string, value: string): unknown {
  if (NUMBERS.has(field)) return /^\d{1,15}$/.test(value.trim()) ? Number(value) : value
  return OBJECTS.has(field) ? readObject(field, value) : value
}

function readObject(field: string, value: string): unknown {
  try {
    if (value.length <= OBJECT_CHARS_MAX) return JSON.parse(value)
  } catch {
    // If the value is not JSON, then the error below is thrown.
  }
  throw new ServiceError('invalid_value', `Invalid '${field}': expected a JSON object.`, { param: field })
}

function twice(name: string): ServiceError {
  return invalid(name, 'is given more than once')
}

function invalid(name: string, problem: string): ServiceError {
  const param = excerpt(name)
  return new ServiceError('invalid_value', `The field '${param}' ${problem}.`, { param })
}
