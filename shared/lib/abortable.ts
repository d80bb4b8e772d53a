/**
 * Waits for work that other callers may share, until the signal aborts. An abort only ends the wait: the work continues, and its
 * later failure is ignored.
 *
 * @throws Any error of the work, or the signal's reason
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
