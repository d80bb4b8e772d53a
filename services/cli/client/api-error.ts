import { z } from 'zod'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

const ErrorBody = z.looseObject({
  error: z.looseObject({ message: z.string(), code: z.string().nullish(), param: z.string().nullish() }),
})

/** Remedies by error code; the HTTP status is the fallback. */
const REMEDIES: Readonly<Record<string, string>> = {
  model_not_found: 'List the available models: GET /v1/models.',
  job_not_found:
    'Check the id; `sluice jobs` lists the jobs of your project. Jobs of other projects require a key with the admin scope.',
  job_not_finished: 'Wait for the job: sluice follow JOB, or sluice get JOB --wait 60.',
  job_already_finished: 'Show the job: sluice get JOB, or sluice get JOB --result.',
  job_cancelled: 'Run the job again: sluice redrive JOB.',
  result_expired: 'Results expire after JOB_RETENTION_MS. Submit the job again.',
  idempotency_key_in_use: 'The first request with this key is still in progress. Find its job: sluice jobs.',
  idempotency_key_reused: 'This key was used with a different request. Use another --idempotency-key.',
  jobs_unavailable:
    'This service has no store for durable jobs. Set DATABASE_URL in its settings, or run all roles in one process.',
  401: 'Set SLUICE_API_KEY or --key. Create a key on the host of the service: sluice keys create.',
  403: "This key isn't allowed to do that. Use a key with the required permissions: sluice keys list.",
  404: 'Check --url or SLUICE_URL: the server has no such endpoint.',
  405: 'The service may be older than this tool. Upgrade the service.',
  413: 'The limit is the setting BODY_BYTES_MAX of the service. Send a smaller request or raise the limit.',
}
const FIX_REQUEST = 'Fix the request and try again.'

export class ApiError extends CommandError {
  readonly status: number
  /** Error code of the service, such as `jobs_unavailable`. Empty if the response has none. */
  readonly code: string

  constructor(status: number, code: string, message: string, next: string | undefined) {
    // Server errors (5xx) get the exit code `unreachable` too, because in both cases the caller may retry later.
    super(status >= 500 ? EXIT.unreachable : EXIT.refused, message, next)
    this.status = status
    this.code = code
  }
}

/** @param retryAfter Value of the Retry-After header, in seconds. */
export function apiErrorFrom(status: number, body: unknown, retryAfter: string | undefined): ApiError {
  const parsed = ErrorBody.safeParse(body)
  const error = parsed.success ? parsed.data.error : undefined
  const code = error?.code ? ` (${error.code}${error.param ? `, ${error.param}` : ''})` : ''
  const message = error
    ? `${plain(error.message)}${plain(code) && ` ${plain(code)}`}`
    : `The service responded with HTTP status ${status}.`
  // A 404 may mean that a worker or job does not exist, instead of a wrong base URL. The message of such an error contains the remedy.
  const isResource = status === 404 && error !== undefined && !error.code && !error.message.startsWith('Invalid URL')
  const remedy = isResource ? undefined : remedyFor(status, error?.code ?? '', retryAfter)
  return new ApiError(status, error?.code ?? '', message, remedy)
}

function remedyFor(status: number, code: string, retryAfter: string | undefined): string | undefined {
  const known = REMEDIES[code] ?? REMEDIES[status]
  if (known) return known
  if (status === 429 || status === 503) {
    return `Try again ${retryAfter && /^\d+$/.test(retryAfter) ? `in ${retryAfter} s` : 'later'}.`
  }
  if (status >= 500) return 'Check the log of the service. To check its dependencies: sluice doctor'
  return status === 400 || status === 422 ? FIX_REQUEST : undefined
}
