import { ServiceError } from '#shared/error.ts'

/**
 * What the preparation of a sandbox gives.
 *
 * @param what Begins the sentence that callers read when it fails.
 * @throws ServiceError `sandbox_unavailable` saying in one line what is missing; the signal's reason
 */
export async function orUnavailable<T>(work: Promise<T>, what: string, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await work
  } catch (cause) {
    signal?.throwIfAborted()
    if (cause instanceof ServiceError && cause.code === 'sandbox_unavailable') throw cause
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new ServiceError('sandbox_unavailable', `${what} could not be prepared: ${reason}`, { cause })
  }
}
