import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Log } from './log/log.ts'
import type { Ports, PrepareProgress } from './ports.ts'
import { LOCAL_SERVER_RESOURCE, SANDBOX_RESOURCE } from './prepare/preparations.ts'

/*
 * Progress of the downloads and builds at a first start. A terminal shows a bar in one line that is redrawn, and one more line for each finished
 * part. Without a terminal, the progress is logged.
 */

const LOG_STEP = 0.1
const BAR_WIDTH = 10
const COLUMNS_DEFAULT = 80

interface SharedProgress {
  runningCount: number
  wasShown: boolean
  hasFailed: boolean
  /** Names of the models and environments that were already reported as ready. Several pools may need the same one, which is reported once. */
  readonly ready: Set<string>
  readonly gauged: Set<string>
  readonly startedMs: number
}

type Next = (onProgress: PrepareProgress, signal: AbortSignal) => Promise<void>

const sharedProgress = new WeakMap<Pick<Ports, 'metrics'>, SharedProgress>()

type PreparingModel = NonNullable<Extract<ControlRecord, { type: 'capacity' }>['preparing']>[number]

/**
 * Prepares the models or the sandbox of a pool while the worker runs, and also models that are added later. Until the preparation ends, calls wait,
 * and streams receive the progress. If the preparation fails, then calls receive 503 with the reason.
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

export function preparingOf({ preparations }: Pick<Ports, 'preparations'>): string[] {
  return preparations.running().map(([what, { fraction }]) => `${what} (${Math.floor(100 * fraction)} %)`)
}

/** Returns the models whose preparation is running, with the progress. Workers publish this list with their capacity. */
export function preparingIn(ports: Pick<Ports, 'models' | 'preparations'>, pool: PoolName): PreparingModel[] {
  const { models, preparations } = ports
  if (preparations.running().length === 0) return []
  const stepOf = (model: string | null, resources: readonly string[]): PreparingModel[] => {
    const resource = resources.find((name) => preparations.stepOf(name))
    const step = resource === undefined ? undefined : preparations.stepOf(resource)
    if (resource === undefined || !step) return []
    return [{ model, resource, percent: Math.floor(100 * step.fraction), step: step.message }]
  }
  if (pool === 'code') return stepOf(null, [SANDBOX_RESOURCE])
  return models.served.models
    .filter((model) => model.pool === pool)
    .flatMap((model) => stepOf(model.id, resourcesOf(model)))
}

function resourcesOf({ id, engine, pool }: ModelConfig): string[] {
  const ofModel = engine.type === 'local' ? [engine.model] : [id, inMemory(id)]
  return engine.type === 'local' || pool === 'transcription' ? [LOCAL_SERVER_RESOURCE, ...ofModel] : ofModel
}

export function inMemory(model: string): string {
  return `${model} in memory`
}

function prepareOnce(ports: Ports, pool: PoolName, abort: AbortController, next?: Next): Promise<void> {
  const all = sharedProgress.get(ports) ?? {
    runningCount: 0,
    wasShown: false,
    hasFailed: false,
    ready: new Set<string>(),
    gauged: new Set<string>(),
    startedMs: performance.now(),
  }
  sharedProgress.set(ports, all)
  all.runningCount += 1
  const draw = process.stderr.isTTY ? drawBar : logSteps(ports.log)
  const show = unlessReady((what, fraction, message) => {
    all.wasShown = true
    ports.preparations.report(what, fraction, message)
    showStep(ports, all.gauged, what)
    if (fraction >= 1 && all.ready.has(what)) return
    if (fraction >= 1) all.ready.add(what)
    draw(what, fraction, message)
  })
  return ports
    .prepareModels(pool, show, abort.signal)
    .then(() => next?.(show, abort.signal))
    .catch((error: unknown) => {
      all.hasFailed = true
      const isStopped = abort.signal.aborted || ports.preparations.stopping.aborted
      if (!isStopped)
        ports.log.error({ err: error, pool }, 'model or sandbox could not be prepared; calls that need it receive 503')
    })
    .finally(() => {
      all.runningCount -= 1
      if (all.runningCount === 0) logEnd(all, ports.log)
    })
}

function showStep({ metrics, preparations }: Ports, gauged: Set<string>, what: string): void {
  if (gauged.has(what)) return
  gauged.add(what)
  metrics.gauge('sluice_prepared_ratio', { resource: what }, () => preparations.fractionOf(what))
}

function logEnd({ wasShown, hasFailed, startedMs }: SharedProgress, log: Log): void {
  if (!wasShown || hasFailed) return
  log.info({ duration_ms: Math.round(performance.now() - startedMs) }, 'models and sandbox prepared')
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
  // The text is shortened to the width of the terminal. A longer text would take two lines, and only the last one could be overwritten.
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
