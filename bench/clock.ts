/**
 * Microseconds of the machine's monotonic clock. All processes of one machine share it, so a time written into a token by
 * one process can be compared in another.
 */
export function nowMicros(): number {
  const [seconds, nanos] = process.hrtime()
  return seconds * 1_000_000 + Math.trunc(nanos / 1_000)
}

/** Waits. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
