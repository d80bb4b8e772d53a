/** What is slow is done less often, but so often at least. */
const MS_MAX = 30_000
const TIMES_MIN = 10

/** Does something again and again, and gives how long each took, in milliseconds. @param prepare Done before each, not counted */
export async function repeat(
  work: () => Promise<void>,
  times: number,
  signal: AbortSignal,
  prepare: () => Promise<void> = async () => {},
): Promise<number[]> {
  const found: number[] = []
  const endsAt = performance.now() + MS_MAX
  while (found.length < times && (found.length < TIMES_MIN || performance.now() < endsAt)) {
    signal.throwIfAborted()
    await prepare()
    const startedAt = performance.now()
    await work()
    found.push(performance.now() - startedAt)
  }
  return found
}
