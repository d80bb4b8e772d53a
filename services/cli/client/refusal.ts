import { z } from 'zod'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

const ErrorAnswer = z.looseObject({
  error: z.looseObject({ message: z.string(), code: z.string().nullish(), param: z.string().nullish() }),
})

/** What to do about a refusal, by its code, and where the code is not known by its status. */
const NEXT: Readonly<Record<string, string>> = {
  model_not_found: 'See which models there are: GET /v1/models.',
  job_not_found:
    "Check the id. Jobs of other projects are shown to keys with the scope admin; `sluice jobs` lists those of this key's.",
  job_not_finished: 'Wait for it: sluice follow JOB, or sluice get JOB --wait 60.',
  job_already_finished: 'Look at it: sluice get JOB, or sluice get JOB --result.',
  job_cancelled: 'Run it again: sluice redrive JOB.',
  result_expired: 'Results are kept for JOB_RETENTION_MS. Submit the job again.',
  idempotency_key_in_use: 'The first request with this key still runs; wait for it: sluice jobs.',
  idempotency_key_reused: 'The key was used with another request. Take another --idempotency-key.',
  jobs_unavailable: 'This service keeps no durable jobs: set DATABASE_URL there, or run all roles in one process.',
  401: 'Set SLUICE_API_KEY or --key. Make a key where the service runs: sluice keys create.',
  403: 'The key may not do this. Take one with more rights: sluice keys list.',
  404: 'Check --url or SLUICE_URL: nothing is there.',
  405: 'The service is older than this tool.',
  413: 'The limit is BODY_BYTES_MAX.',
}
const MEND = 'Mend the request and submit it again.'

/** The service answered, and did not do it. */
export class Refusal extends CommandError {
  /** HTTP status. */
  readonly status: number
  /** The code of the service, such as `jobs_unavailable`; empty where it said none. */
  readonly code: string

  constructor(status: number, code: string, message: string, next: string | undefined) {
    // Nobody can work with a service that fails itself: the same as none.
    super(status >= 500 ? EXIT.unreachable : EXIT.refused, message, next)
    this.status = status
    this.code = code
  }
}

/** A refusal of the service in words, with what to do next. @param retryAfter In seconds */
export function refusal(status: number, body: unknown, retryAfter: string | undefined): Refusal {
  const parsed = ErrorAnswer.safeParse(body)
  const error = parsed.success ? parsed.data.error : undefined
  const code = error?.code ? ` (${error.code}${error.param ? `, ${error.param}` : ''})` : ''
  const message = error
    ? `${plain(error.message)}${plain(code) && ` ${plain(code)}`}`
    : `The service answered ${status}.`
  // What is not there is something that was named, such as a worker, and not the service: the message says how to find it.
  const isNamed = status === 404 && error !== undefined && !error.code && !error.message.startsWith('Invalid URL')
  return new Refusal(
    status,
    error?.code ?? '',
    message,
    isNamed ? undefined : nextFor(status, error?.code ?? '', retryAfter),
  )
}

function nextFor(status: number, code: string, retryAfter: string | undefined): string | undefined {
  const known = NEXT[code] ?? NEXT[status]
  if (known) return known
  if (status === 429 || status === 503) {
    return `Try again ${retryAfter && /^\d+$/.test(retryAfter) ? `in ${retryAfter} s` : 'later'}.`
  }
  if (status >= 500) return 'Look at the log of the service; `sluice doctor` checks what it depends on.'
  return status === 400 || status === 422 ? MEND : undefined
}
