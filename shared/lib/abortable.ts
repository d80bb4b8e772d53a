/**
 * Waits for work until the signal aborts. Other callers may wait for the same work, so an abort ends only this wait. The work continues, and a later
 * failure of it is ignored.
 *
 * @throws Any error of the work, or the abort reason of the signal
 */
export async function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>()
  const leave = () => reject(signal.reason)
  if (signal.aborted) leave()
  signal.addEventListener('abort', leave, { once: true })
  try {
    return await Promise.race([work, promise])
  } finally {
    signal.removeEventListener('abort', leave)
    work.catch(() => {})
  }
}
