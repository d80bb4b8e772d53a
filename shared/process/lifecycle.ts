import type { Log } from '#shared/log/log.ts'

export interface Service {
  readonly name: string
  /** Stops accepting work and waits for running work. When `signal` aborts, the remaining work is handed back or failed. */
  drain(signal: AbortSignal): Promise<void>
  close(): Promise<void>
  problems(): string[]
}

/** Maximum time for the close after the drain, in ms. Afterwards, the process exits anyway. */
const CLOSE_MS = 10_000
/** Ctrl-C under npm arrives twice, from the terminal and from npm: a signal within this time is a duplicate. */
const SAME_SIGNAL_MS = 1_000

/**
 * Stops services: all drain under one deadline, then all close, both in reverse order of their start.
 *
 * @param drainMs Maximum drain time; then running work is handed back or failed.
 * @returns False if a service failed to stop in time
 */
export async function stopAll(services: readonly Service[], drainMs: number, log: Log): Promise<boolean> {
  const deadline = AbortSignal.timeout(drainMs)
  let isClean = await within(drainInReverse(services, deadline), drainMs + CLOSE_MS)
  for (const service of [...services].reverse()) {
    const closed = await within(Promise.allSettled([service.close()]), CLOSE_MS)
    if (!closed) log.error({ service: service.name }, 'service did not close in time; exiting')
    isClean &&= closed
  }
  return isClean
}

/**
 * Runs until SIGTERM or SIGINT, then stops all services and exits: 0 after a clean stop, else 1. A second signal exits with 1 at once, unless it is a
 * duplicate.
 */
export function stopOnSignals(services: readonly Service[], drainMs: number, log: Log): void {
  let stoppingSince: number | undefined
  const onSignal = (signal: string) => {
    if (stoppingSince !== undefined) {
      if (performance.now() - stoppingSince < SAME_SIGNAL_MS) return
      log.warn({ signal }, 'second signal; exiting at once')
      process.exit(1)
    }
    stoppingSince = performance.now()
    log.info({ signal, drain_ms: drainMs }, 'draining')
    void stopAll(services, drainMs, log).then((isClean) => {
      log.info({ clean: isClean }, 'stopped')
      process.exit(isClean ? 0 : 1)
    })
  }
  process.on('SIGTERM', onSignal)
  process.on('SIGINT', onSignal)
}

/**
 * Drains services one by one, in reverse order of their start. A service may need earlier services until its own work has ended,
 * as an ingress needs its workers.
 */
async function drainInReverse(services: readonly Service[], deadline: AbortSignal) {
  const ends: PromiseSettledResult<void>[] = []
  for (const service of [...services].reverse()) ends.push(...(await Promise.allSettled([service.drain(deadline)])))
  return ends
}

async function within(settled: Promise<PromiseSettledResult<unknown>[]>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, ms, undefined)
  })
  const results = await Promise.race([settled, timeout])
  clearTimeout(timer)
  return results?.every((result) => result.status === 'fulfilled') ?? false
}
