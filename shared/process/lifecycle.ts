import type { Log } from '#shared/log/log.ts'

export interface Service {
  readonly name: string
  /** Called on all services before the first of them drains. Ends waits that would delay the drain, such as the wait for a download. */
  stopping?(): void
  /** Stops accepting work and waits for running work. When `signal` aborts, the remaining work is requeued or fails. */
  drain(signal: AbortSignal): Promise<void>
  close(): Promise<void>
  problems(): string[]
}

interface Draining {
  /** The service that drains now, or drained last. */
  service: Service | undefined
}

/** Maximum time in ms for closing after the drain. Afterwards the process exits in any case. */
const CLOSE_MS = 10_000
/** Time in ms within which a second signal is ignored as a duplicate. Under npm, Ctrl-C sends the signal twice: from the terminal and from npm. */
const SAME_SIGNAL_MS = 1_000

/**
 * Drains all services, then closes them, both in reverse order of their start.
 *
 * @param drainMs Maximum time of all drains together, in ms. Work that still runs then is requeued or fails
 * @returns False if a service did not stop in time
 */
export async function stopAll(services: readonly Service[], drainMs: number, log: Log): Promise<boolean> {
  for (const service of services) service.stopping?.()
  const deadline = AbortSignal.timeout(drainMs)
  const draining: Draining = { service: undefined }
  let isClean = await within(drainInReverse(services, deadline, draining), drainMs + CLOSE_MS)
  if (!isClean)
    log.error({ service: draining.service?.name }, 'service did not drain in time; closing it with work still running')
  for (const service of [...services].reverse()) {
    const closed = await within(Promise.allSettled([service.close()]), CLOSE_MS)
    if (!closed) log.error({ service: service.name }, 'service did not close in time; exiting')
    isClean &&= closed
  }
  return isClean
}

/**
 * Runs until SIGTERM or SIGINT, then stops all services and exits. The exit code is 0 after a clean stop, otherwise 1. A second signal ends the
 * process at once with exit code 1, unless it is a duplicate ({@link SAME_SIGNAL_MS}).
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
    log.info({ signal, drain_ms: drainMs }, 'process is draining')
    void stopAll(services, drainMs, log).then((isClean) => {
      log.info({ clean: isClean }, 'process stopped')
      process.exit(isClean ? 0 : 1)
    })
  }
  process.on('SIGTERM', onSignal)
  process.on('SIGINT', onSignal)
}

/**
 * Drains services one after another, in reverse order of their start. While a service drains, it may need services that were started before it. For
 * example, an ingress needs its workers.
 */
async function drainInReverse(services: readonly Service[], deadline: AbortSignal, draining: Draining) {
  const ends: PromiseSettledResult<void>[] = []
  for (const service of [...services].reverse()) {
    draining.service = service
    ends.push(...(await Promise.allSettled([service.drain(deadline)])))
  }
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
