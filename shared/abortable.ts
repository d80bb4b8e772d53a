/**
 * Waits for what others wait for as well: leaving it does not end it, and its failure is then nobody's.
 *
 * @throws what the work throws, or the signal's reason
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
