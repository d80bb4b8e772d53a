import type { Log } from '#shared/log/log.ts'

/** A part of the process that starts, drains and stops. A second call of either does nothing. */
export interface Service {
  readonly name: string
  /** Takes nothing new and waits for what runs; at `signal` ends what still runs. */
  drain(signal: AbortSignal): Promise<void>
  close(): Promise<void>
  /** Sentences that say why it cannot work now; none when it can. */
  problems(): string[]
}

/** How long closing may take after the drain before the process ends anyway. */
const CLOSE_MS = 10_000
/** Ctrl-C under npm arrives twice, from the terminal and from npm: so soon a second signal is the first one again. */
const SAME_SIGNAL_MS = 1_000

/**
 * Stops services in good order: all drain under one deadline and then close, the last started first.
 *
 * @param drainMs How long the drain may take before what still runs is handed back or failed.
 * @returns False when something did not stop in time or failed to.
 */
export async function stopAll(services: readonly Service[], drainMs: number, log: Log): Promise<boolean> {
  const deadline = AbortSignal.timeout(drainMs)
  let isClean = await within(drainInTurn(services, deadline), drainMs + CLOSE_MS)
  for (const service of [...services].reverse()) {
    const closed = await within(Promise.allSettled([service.close()]), CLOSE_MS)
    if (!closed) log.error({ service: service.name }, 'service did not close')
    isClean &&= closed
  }
  return isClean
}

/**
 * Runs until SIGTERM or SIGINT, then stops everything and exits: 0 when all went well, 1 when not.
 * A second signal exits with 1 at once, unless it comes within a second of the first.
 */
export function stopOnSignals(services: readonly Service[], drainMs: number, log: Log): void {
  let stoppingSince: number | undefined
  const onSignal = (signal: string) => {
    if (stoppingSince !== undefined) {
      if (performance.now() - stoppingSince < SAME_SIGNAL_MS) return
      log.warn({ signal }, 'second signal; leaving at once')
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

/** A service that started later may need those before it until its own work has ended: an ingress its workers. */
async function drainInTurn(services: readonly Service[], deadline: AbortSignal) {
  const ends: PromiseSettledResult<void>[] = []
  for (const service of [...services].reverse()) ends.push(...(await Promise.allSettled([service.drain(deadline)])))
  return ends
}

/** Whether all settled well within a time. */
async function within(settled: Promise<PromiseSettledResult<unknown>[]>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, ms, undefined)
  })
  const results = await Promise.race([settled, timeout])
  clearTimeout(timer)
  return results?.every((result) => result.status === 'fulfilled') ?? false
}
