import type { ErrorCode } from '#schemas/error.ts'
import { UPSTREAM_REMEDIES, upstreamRemedyOf } from '#shared/doctor/calls.ts'
import { messagesPath } from '#shared/kinds/errors.ts'
import type { RequestRow } from '#shared/store/requests.ts'

/** Remedy for callers without a valid key. Such callers have no access to the console. */
const NEW_KEY = 'Ask the operator of the service for a key. Operators run `npx sluice keys create`, or use the console.'

/**
 * Remedies of each error code, as listed in docs/reference/errors.md. The first remedy is for the caller. The second
 * remedy is for the operator, because it needs access to the service.
 */
export const REMEDIES: Readonly<Record<ErrorCode, readonly [caller: string, operator?: string]>> = {
  invalid_request: ['Fix the problem that `message` states.'],
  missing_required_parameter: ['Add the field that `param` names.'],
  invalid_type: ['Send the field that `param` names as the type that `message` names.'],
  invalid_value: ['Fix the field that `param` names.'],
  unsupported_value: ['Use a value that `message` lists.'],
  unsupported_parameter: ['Remove the field that `param` names.'],
  empty_array: ['Add at least one element to the array that `param` names.'],
  empty_string: ['Send a non-empty string as the field that `param` names.'],
  array_above_max_length: ['Send fewer elements. `message` states the maximum.'],
  array_below_min_length: ['Send more elements. `message` states the minimum.'],
  string_above_max_length: ['Shorten the string. `message` states the maximum.'],
  integer_below_min_value: ['Use a value within the bounds in `message`.'],
  integer_above_max_value: ['Use a value within the bounds in `message`.'],
  decimal_below_min_value: ['Use a value within the bounds in `message`.'],
  decimal_above_max_value: ['Use a value within the bounds in `message`.'],
  context_length_exceeded: ['Shorten the prompt, or request fewer output tokens.'],
  answer_too_large: ['Request fewer tokens, choices or inputs.'],
  model_not_supported: ['Use another model or endpoint.'],
  invalid_audio: ['Send a flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav or webm file.'],
  audio_too_short: ['Send longer audio.'],
  audio_too_long: ['Split the audio into shorter files.'],
  invalid_language_format: ['Send an ISO 639-1 code, such as `en`.'],
  method_not_supported: ['Use a method from the `Allow` header.'],
  request_too_large: ['Send a smaller body.'],
  unsupported_media_type: ['Send `application/json`, uncompressed or as gzip, deflate, br or zstd.'],
  missing_api_key: [`Send \`Authorization: Bearer KEY\` or \`x-api-key: KEY\`. ${NEW_KEY}`],
  invalid_api_key: [`Use a valid key. ${NEW_KEY}`],
  permission_denied: [
    'Use a key with the permission that `message` names. Inference needs the scope `calls`, `/v1/admin` needs `admin`.',
  ],
  model_not_allowed: ['Use another model or key. `message` lists the models of the key.'],
  not_found: ['Check the path. `message` suggests similar paths, or the SDK setting that selects another API.'],
  model_not_found: ['Use a model from `GET /v1/models`. `message` suggests similar names.'],
  job_not_found: ['Check the id and the API key.'],
  result_expired: ['Submit the request again. If the request has an `Idempotency-Key`, use a new one.'],
  job_not_finished: [
    'If there is a `Retry-After` header, retry after that time. Otherwise cancel the job or wait for its end.',
  ],
  job_already_finished: ['Do not retry.'],
  job_cancelled: ['If you need the result, redrive the job, which runs the job again.'],
  idempotency_key_in_use: ['Retry after the time in the header `Retry-After`. SDKs do this automatically.'],
  idempotency_key_reused: ['Use a new `Idempotency-Key` for each new request.'],
  rate_limit_exceeded: [
    'Retry after the time in the header `Retry-After`. A queued durable job waits automatically; the wait does not count as an attempt.',
    'Raise the limit of the key or project.',
  ],
  token_limit_exceeded: [
    'Retry after the time in the header `Retry-After`.',
    'Raise the tokens per minute of the key or project.',
  ],
  insufficient_quota: [
    'If the budget is spent, wait for the next month. If the storage quota is exceeded, delete files or jobs.',
    'Raise the budget or the storage quota.',
  ],
  request_timeout: ['Retry. SDKs do this automatically.'],
  slow_reader: ['Read faster, or request less output.'],
  timeout: ['Request less output, or raise `expires_after_seconds` of a durable job.', 'Raise `REQUEST_TIMEOUT_MS`.'],
  job_expired: ['Redrive the job, or raise its `start_within_seconds`.'],
  upstream_timeout: [
    'If there is a `Retry-After` header, retry after that time. Otherwise use another model, or try again later.',
    UPSTREAM_REMEDIES.upstream_timeout,
  ],
  overloaded: [
    'Retry after the time in the header `Retry-After`, or use another model.',
    "Run `npx sluice doctor`, and check the load and the log of the model's server.",
  ],
  model_loading: [
    'Retry after the time in the header `Retry-After`, or use another model.',
    'Check the log of the worker.',
  ],
  sandbox_unavailable: ['Retry after the time in the header `Retry-After`.', 'Run `npx sluice doctor`.'],
  jobs_unavailable: ['Do not retry.', 'Set `DATABASE_URL`.'],
  internal_error: ['Retry once.', 'Find the request id in the logs of the service, and report the defect.'],
  worker_lost: [
    'If a stream was interrupted, send the request again. Otherwise do not retry.',
    'Check the log of the worker.',
  ],
  sandbox_lost: [
    'Do not retry. Change the code, for example so that it uses less memory.',
    'Check the log of the worker.',
  ],
  upstream_error: [
    'If there is a `Retry-After` header, retry after that time. Otherwise use another model, or try again later.',
    UPSTREAM_REMEDIES.upstream_error,
  ],
  upstream_refused: ['Use another model.', UPSTREAM_REMEDIES.upstream_refused],
}

type Found = Readonly<Record<string, string | undefined>>

/**
 * Next steps that contain values of the error message. Each row has a pattern of the error code, a pattern of the message in the
 * wording of one API, and the step. In a step, `{name}` is replaced with the group of this name in the message pattern, and
 * `{field}` with the field of the error. The first matching row applies.
 */
const CONCRETE_STEPS: readonly (readonly [code: RegExp, message: RegExp, step: string])[] = [
  [
    /^invalid_type$/,
    /expected (?<wanted>.+), but got (?<got>.+) instead\.$/s,
    'Send {field} as {wanted}, not as {got}.',
  ],
  [/^invalid_type$/, /^Input should be (?<wanted>.+), not (?<got>.+)$/s, 'Send {field} as {wanted}, not as {got}.'],
  [/_value$/, /Expected a value (?<sign>[<>]=) (?<bound>\S+), but got/, 'Send {field} {sign} {bound}.'],
  [/_max_value$/, /^Input should be less than or equal to (?<bound>\S+)$/, 'Send {field} <= {bound}.'],
  [/_min_value$/, /^Input should be greater than or equal to (?<bound>\S+)$/, 'Send {field} >= {bound}.'],
  [/^invalid_value$/, /Supported values are: (?<values>.+)\.$/s, 'Send one of these values as {field}: {values}.'],
  [/^invalid_value$/, /^Input should be (?<values>'.*'), not .+$/s, 'Send one of these values as {field}: {values}.'],
  [
    /^invalid_value$/,
    /^(?:Invalid '.+': expected|Input should be) (?<wanted>[^'].*?)\.?$/s,
    'Send {field} as {wanted}.',
  ],
  [/^string_above/, /(?:maximum length|at most) (?<bound>\d+)/, 'Shorten {field} to at most {bound} characters.'],
  [/^array_above/, /(?:maximum length|at most) (?<bound>\d+)/, 'Send at most {bound} elements in {field}.'],
  [/^array_below/, /(?:minimum length|at least) (?<bound>\d+)/, 'Send at least {bound} elements in {field}.'],
  [/^(model_)?not_found$/, /Did you mean (?<name>[^?]+)\?/, 'Use {name}.'],
  [/^model_not_(found|allowed)$/, /This key may use: (?<models>.+)\.$/s, 'Use one of these models: {models}.'],
  [/^missing_required_parameter$/, /(?:)/, 'Add the field {field}.'],
  [/^unsupported_parameter$/, /(?:)/, 'Remove the field {field}.'],
  [
    /^invalid_request$/,
    /^We could not parse the JSON body of your request\. .* at (?<place>line \d+ column \d+)(?:, after `.*`)?\. (?<fix>.+)$/s,
    '{fix} The error is at {place} of the body.',
  ],
  [/^invalid_request$/, /\. (?<fix>(?:Add|Encode|Remove|Send|Use) [^.]+\.)$/, '{fix}'],
  [
    /^upstream_(error|timeout)$/,
    /(?:calls are paused until|Retry after) (?<time>\d+ s|[\d:]+ UTC)/,
    'Retry after {time}, or use another model.',
  ],
]

type FailedRow = Pick<RequestRow, 'id' | 'errorCode' | 'errorMessage' | 'errorParam' | 'jobId' | 'firstOutputMs'> &
  Partial<Pick<RequestRow, 'worker' | 'upstreamMessage'>>

/**
 * Chooses the part of a remedy that applies to a recorded call.
 *
 * 1. The part about the header `Retry-After` is removed. If an upstream sent this header, then its error message states the time, and
 *    {@link CONCRETE_STEPS} has a step with the time.
 * 2. For a durable job or an interrupted stream, "later" replaces the time in `Retry-After`. The error of such a call has no headers,
 *    because it was sent in a body.
 */
function remedyFor(caller: string, { jobId, firstOutputMs }: FailedRow): string {
  const isInterrupted = jobId === null && firstOutputMs !== null
  const chosen = caller
    .replace(/If there is a `Retry-After` header, .+?\. Otherwise (.)/, (_, first: string) => first.toUpperCase())
    .replace(
      /If a stream was interrupted, (.)(.+?\.) Otherwise (.)(.+)/,
      (_, a: string, then: string, b: string, other) =>
        isInterrupted ? a.toUpperCase() + then : b.toUpperCase() + other,
    )
  if (jobId === null && !isInterrupted)
    return chosen.replace('redrive the job, which runs the job again', 'send the request again')
  const later = jobId === null ? 'Try again later' : 'Redrive the job later'
  return chosen
    .replace('Retry after the time in the header `Retry-After`', later)
    .replace('or try again later', jobId === null ? 'or try again later' : 'or redrive the job later')
}

/**
 * Returns the next step for the reader of a failed request, with the field and the value from the error message if possible. Null if
 * no step is known besides the text of the error message.
 *
 * @param isOperator Whether the reader has access to the service. The next step of other readers is to send the request id to the operator
 */
export function nextStepOf(row: FailedRow, isOperator: boolean): string | null {
  const { id, errorCode } = row
  if (errorCode === null || !Object.hasOwn(REMEDIES, errorCode)) return null
  const [remedy, general] = REMEDIES[errorCode as ErrorCode]
  const operator = isOfUpstream(row)
    ? upstreamRemedyOf(errorCode, row.upstreamMessage ?? row.errorMessage ?? '')
    : general
  const concrete = concreteStepOf(row)
  const more = isOperator
    ? `The operator: ${operator}`
    : `If the error persists, send the request id ${id} to the operator.`
  // The message stands next to the step, so sentences that only refer to the message or the field are left out.
  const generalSteps = () =>
    remedyFor(remedy, row)
      .split(/(?<=\.) /)
      .filter((sentence) => !/`(?:message|param)`/.test(sentence))
  const steps = (concrete === undefined ? generalSteps() : [concrete]).join(' ')
  const caller = isOperator && steps ? `The caller: ${steps}` : steps
  return [caller, ...(operator === undefined ? [] : [more])].join(' ').trim().replaceAll('`', '') || null
}

/** Whether an upstream server failed the call, so that the remedy of the alert about a failing model applies. */
function isOfUpstream({ errorCode, worker }: FailedRow): boolean {
  return errorCode?.startsWith('upstream_') === true || (errorCode === 'overloaded' && worker != null)
}

function concreteStepOf({ errorCode, errorMessage: sent, errorParam }: FailedRow): string | undefined {
  const field = errorParam === null ? '' : `${messagesPath(errorParam)}: `
  const errorMessage = field && sent?.startsWith(field) ? sent.slice(field.length) : sent
  for (const [code, pattern, step] of CONCRETE_STEPS) {
    const found = code.test(errorCode ?? '') && pattern.exec(errorMessage ?? '')
    if (!found) continue
    const groups: Found = { ...found.groups, field: errorParam ?? 'the body' }
    return step.replace(/\{(\w+)\}/g, (_, name: string) => groups[name] ?? '')
  }
  return undefined
}
