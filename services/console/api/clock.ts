let aheadMs = 0

/** Now in unix seconds by the clock of the service, whose times a page tells: that of the browser may be hours from it. */
export function serviceNow(): number {
  return (Date.now() + aheadMs) / 1_000
}

/**
 * Takes from an answer how far the clock of the service is from that of the browser; nothing as long as they may be the same.
 *
 * @param date Header of the answer (RFC 9110 §6.6.1), in whole seconds, of a moment while it was waited for
 * @param askedAtMs When it was asked for, by the clock of the browser
 */
export function hearClock(date: string | null, askedAtMs: number): void {
  const saidMs = Date.parse(date ?? '')
  if (Number.isNaN(saidMs)) return
  const [least, most] = [saidMs - Date.now(), saidMs + 1_000 - askedAtMs]
  aheadMs = Math.min(Math.max(0, least), most)
}
