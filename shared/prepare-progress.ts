import type { PoolName } from '#schemas/job.ts'
import type { Log } from './log/log.ts'
import type { Ports, PrepareProgress } from './ports.ts'

/*
 * Progress of the downloads and builds at a first start. On a terminal, a bar is redrawn in one line, and each finished part adds a
 * line. Otherwise the progress is logged.
 */

const LOG_STEP = 0.1
const BAR_WIDTH = 10
const COLUMNS_DEFAULT = 80

interface Together {
  underWay: number
  wasShown: boolean
  hasFailed: boolean
  /** Names of models and environments that were reported as ready. Several pools may share one, which is reported once. */
  readonly ready: Set<string>
  readonly shares: Map<string, number>
  readonly startedMs: number
}

type Next = (onProgress: PrepareProgress, signal: AbortSignal) => Promise<void>

const together = new WeakMap<Pick<Ports, 'metrics'>, Together>()

/**
 * Prepares the models or the sandbox of a pool while the worker runs, including models that are added later. Until the preparation
 * ends, calls receive 503 with the progress. If it fails, they receive the reason.
 *
 * @param next A further step, after everything of the pool is prepared and before the first call
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

export function preparingOf(ports: Pick<Ports, 'metrics'>): string[] {
  const shares = [...(together.get(ports)?.shares ?? [])].filter(([, share]) => share < 1)
  return shares.map(([what, share]) => `${what} (${Math.floor(100 * share)} %)`)
}

function prepareOnce(ports: Ports, pool: PoolName, abort: AbortController, next?: Next): Promise<void> {
  const all = together.get(ports) ?? {
    underWay: 0,
    wasShown: false,
    hasFailed: false,
    ready: new Set<string>(),
    shares: new Map<string, number>(),
    startedMs: performance.now(),
  }
  together.set(ports, all)
  all.underWay += 1
  const draw = process.stderr.isTTY ? drawBar : logSteps(ports.log)
  const show = unlessReady((what, fraction, message) => {
    all.wasShown = true
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
      if (!abort.signal.aborted) ports.log.error({ err: error, pool }, 'model or sandbox could not be prepared')
    })
    .finally(() => {
      all.underWay -= 1
      if (all.underWay === 0) logEnd(all, ports.log)
    })
}

function showShare({ metrics }: Ports, { shares }: Together, what: string, fraction: number): void {
  const isNew = !shares.has(what)
  shares.set(what, fraction)
  if (isNew) metrics.gauge('sluice_prepared_ratio', { resource: what }, () => shares.get(what))
}

function logEnd({ wasShown, hasFailed, startedMs }: Together, log: Log): void {
  if (!wasShown || hasFailed) return
  log.info({ duration_ms: Math.round(performance.now() - startedMs) }, 'preparation finished')
}

function unlessReady(show: PrepareProgress): PrepareProgress {
  const shown = new Set<string>()
  let last = ''
  return (what, fraction, message) => {
    if (!shown.has(what) && fraction >= 1) return
    shown.add(what)
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
  // A longer text would take two terminal lines, of which only one could be overwritten.
  process.stderr.write(`\r\x1b[K${shortened(line, (process.stderr.columns || COLUMNS_DEFAULT) - 1)}`)
}

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
