import { setTimeout as wait } from 'node:timers/promises'
import { ERRORS } from '#schemas/error.ts'
import { ServiceError } from '#shared/error.ts'

/** Times that something outside is asked, and the longest wait in between. */
const TRIES = 2
const WAIT_MS = 500
const WAIT_MS_MAX = 5_000
/** One search, or one page. */
const TRY_MS = 20_000

/**
 * Asks something outside, with a time for each try and one more try where that may help.
 *
 * @param leftMs Milliseconds for all of it.
 * @throws ServiceError; the signal's reason
 */
export async function withRetry<T>(
  run: (signal: AbortSignal) => Promise<T>,
  signal: AbortSignal,
  leftMs: number,
): Promise<T> {
  const endsAtMs = Date.now() + leftMs
  for (let tries = 1; ; tries++) {
    const timeout = AbortSignal.timeout(Math.ceil(Math.min(TRY_MS, Math.max(1, endsAtMs - Date.now()))))
    try {
      return await run(AbortSignal.any([signal, timeout]))
    } catch (error) {
      signal.throwIfAborted()
      const failure = timeout.aborted
        ? new ServiceError('upstream_timeout', 'It took too long.')
        : ServiceError.from(error)
      const waitMs = failure.retryAfterMs ?? WAIT_MS
      if (tries >= TRIES || !ERRORS[failure.code].retry || waitMs > Math.min(WAIT_MS_MAX, endsAtMs - Date.now()))
        throw failure
      await wait(waitMs, undefined, { signal })
    }
  }
}
