/*
 * Estimates the offset between the clocks of the service and the browser, which may be hours apart. Pages compute ages from times of the
 * service, so the browser's clock alone would give wrong ages.
 *
 * A `date` header has whole seconds and was written while the request was in flight. Both facts give a lower and an upper bound of the
 * offset. The value closest to zero within these bounds is used, so clocks that may be equal are treated as equal.
 */

let aheadMs = 0

export function serviceNow(): number {
  return (Date.now() + aheadMs) / 1_000
}

/**
 * Updates the offset from a response.
 *
 * @param date The `date` header (RFC 9110 §6.6.1)
 * @param sentAtMs When the request was sent, by the browser's clock
 */
export function syncClock(date: string | null, sentAtMs: number): void {
  const dateMs = Date.parse(date ?? '')
  if (Number.isNaN(dateMs)) return
  const [least, most] = [dateMs - Date.now(), dateMs + 1_000 - sentAtMs]
  aheadMs = Math.min(Math.max(0, least), most)
}
