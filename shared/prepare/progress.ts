import type { PoolName } from '#schemas/job.ts'
import type { Log } from '#shared/log/log.ts'
import type { Ports, PrepareProgress } from '#shared/ports.ts'

/*
 * What a first start fetches and builds, as the people who wait for it see it: on a terminal a bar in one line, which is
 * drawn over, and a line for each part that is ready; elsewhere log lines.
 */

/** How much further a preparation must be before the log says so again. */
const LOG_STEP = 0.1
const BAR_WIDTH = 10
/** Columns of a terminal that does not know. */
const COLUMNS_DEFAULT = 80

/** The preparations of a process together: all is ready when the last of them is. */
interface Together {
  underWay: number
  /** Some of it was not there yet, and so was told. */
  isTold: boolean
  hasFailed: boolean
  /** Parts that were told to be ready: pools may share one. */
  readonly ready: Set<string>
  /** How far each part is that was not there yet, 0 to 1. */
  readonly shares: Map<string, number>
  readonly startedMs: number
}

/** Goes on where preparations end, and tells how far it is as they do. */
type Next = (onProgress: PrepareProgress, signal: AbortSignal) => Promise<void>

const together = new WeakMap<Pick<Ports, 'metrics'>, Together>()

/**
 * Prepares what a pool needs, its models or its sandbox, while the worker serves already; models that come later too. What
 * still waits answers 503 with how far it is; what cannot be prepared says why.
 *
 * @param next What else is done before the first call, once all of the pool is there.
 */
export function prepareInBackground(ports: Ports, pool: PoolName, next?: Next): { stop(): Promise<void> } {
  const abort = new AbortController()
  let done = prepareOnce(ports, pool, abort, next)
  const forget = ports.models.onChange(() => {
    if (pool !== 'code') done = Promise.all([done, prepareOnce(ports, pool, abort, next)]).then(() => {})
  })
  return {
    async stop() {
      forget()
      abort.abort()
      await done
    },
  }
}

/** What of a process is not prepared yet, each with how far it is: empty once all is there. */
export function preparingOf(ports: Pick<Ports, 'metrics'>): string[] {
  const shares = [...(together.get(ports)?.shares ?? [])].filter(([, share]) => share < 1)
  return shares.map(([what, share]) => `${what} (${Math.floor(100 * share)} %)`)
}

function prepareOnce(ports: Ports, pool: PoolName, abort: AbortController, next?: Next): Promise<void> {
  const all = together.get(ports) ?? {
    underWay: 0,
    isTold: false,
    hasFailed: false,
    ready: new Set<string>(),
    shares: new Map<string, number>(),
    startedMs: performance.now(),
  }
  together.set(ports, all)
  all.underWay += 1
  const draw = process.stderr.isTTY ? drawBar : logSteps(ports.log)
  const show = unlessThere((what, fraction, message) => {
    all.isTold = true
    showShare(ports, all, what, fraction)
    if (fraction >= 1 && all.ready.has(what)) return
    if (fraction >= 1) all.ready.add(what)
    draw(what, fraction, message)
  })
  return ports
    .prepareModels(pool, show, abort.signal)
    .then(() => next?.(show, abort.signal))
    .catch((error: unknown) => {
      all.hasFailed = true
      if (!abort.signal.aborted) ports.log.error({ err: error, pool }, 'not prepared')
    })
    .finally(() => {
      all.underWay -= 1
      if (all.underWay === 0) tellEnd(all, ports.log)
    })
}

/** A gauge for each part that was not there yet: the console draws a bar of it. */
function showShare({ metrics }: Ports, { shares }: Together, what: string, fraction: number): void {
  const isNew = !shares.has(what)
  shares.set(what, fraction)
  if (isNew)
    metrics.gauge('sluice_prepared_ratio', 'How far a part is prepared, 0 to 1', { what }, () => shares.get(what))
}

function tellEnd({ isTold, hasFailed, startedMs }: Together, log: Log): void {
  if (!isTold || hasFailed) return
  log.info({ duration_ms: Math.round(performance.now() - startedMs) }, 'all is prepared')
}

/** What was there all along is no news. */
function unlessThere(show: PrepareProgress): PrepareProgress {
  const told = new Set<string>()
  let last = ''
  return (what, fraction, message) => {
    if (!told.has(what) && fraction >= 1) return
    told.add(what)
    const now = JSON.stringify([what, fraction, message])
    if (now !== last) show(what, fraction, message)
    last = now
  }
}

function drawBar(what: string, fraction: number, message: string): void {
  if (fraction >= 1) {
    process.stderr.write(`\r\x1b[KReady: ${what}\n`)
    return
  }
  const filled = Math.round(fraction * BAR_WIDTH)
  const bar = '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled)
  const line = `Preparing ${what} ${bar} ${Math.floor(fraction * 100)} % ${message}`
  // One line: what is longer could not be drawn again.
  process.stderr.write(`\r\x1b[K${shortened(line, (process.stderr.columns || COLUMNS_DEFAULT) - 1)}`)
}

/** Cut after a word. */
function shortened(line: string, columns: number): string {
  if (line.length <= columns) return line
  return `${line.slice(0, columns - 1).replace(/ [^ ]*$/, '')}…`
}

function logSteps(log: Log): PrepareProgress {
  const logged = new Map<string, number>()
  return (what, fraction, message) => {
    const last = logged.get(what)
    if (last !== undefined && fraction < 1 && fraction - last < LOG_STEP) return
    if (last === fraction) return
    logged.set(what, fraction)
    log.info({ model: what, percent: Math.round(fraction * 100), step: message }, 'preparing model')
  }
}
