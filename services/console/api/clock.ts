/*
 * Estimates the offset between the clock of the service and that of the browser, which may be hours apart. Pages compute ages
 * from times of the service, so the clock of the browser alone can be hours off.
 *
 * A `date` header has whole seconds and was written while the request was in flight. Both facts bound the offset, and the value
 * closest to zero within these bounds is used: clocks that may be equal count as equal.
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
