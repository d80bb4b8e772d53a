import type { PoolName } from '#schemas/job.ts'
import type { Ports } from './ports.ts'

/** How much further a preparation must be before the log says so again. */
const LOG_STEP = 0.1
const BAR_WIDTH = 20
/** Columns of a terminal that does not know. */
const COLUMNS_DEFAULT = 80

/**
 * Prepares what a pool needs, its models or its sandbox, while the worker serves already: a bar on a terminal, log lines
 * elsewhere. What still waits answers 503 with how far it is; what cannot be prepared says why.
 */
export function prepareInBackground(ports: Ports, pool: PoolName): { stop(): Promise<void> } {
  const abort = new AbortController()
  const show = process.stderr.isTTY ? showBar() : logSteps(ports)
  const done = ports.prepareModels(pool, show, abort.signal).catch((error: unknown) => {
    if (!abort.signal.aborted) ports.log.error({ err: error, pool }, 'not prepared')
  })
  return {
    async stop() {
      abort.abort()
      await done
    },
  }
}

function showBar(): (model: string, fraction: number, message: string) => void {
  let last = ''
  return (model, fraction, message) => {
    const filled = Math.round(fraction * BAR_WIDTH)
    const bar = '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled)
    const line = `Preparing ${model} ${bar} ${Math.round(fraction * 100)} % ${message}`
    // Weights that were there all along are no news.
    if (line === last || (last === '' && fraction >= 1)) return
    // One line: what is longer could not be drawn again.
    const shown = line.slice(0, (process.stderr.columns || COLUMNS_DEFAULT) - 1)
    process.stderr.write(`\r\x1b[K${shown}${fraction >= 1 ? '\n' : ''}`)
    last = line
  }
}

function logSteps(ports: Ports): (model: string, fraction: number, message: string) => void {
  const logged = new Map<string, number>()
  return (model, fraction, message) => {
    const last = logged.get(model)
    if (last === undefined && fraction >= 1) return
    if (last !== undefined && fraction < 1 && fraction - last < LOG_STEP) return
    if (last === fraction) return
    logged.set(model, fraction)
    ports.log.info({ model, percent: Math.round(fraction * 100), step: message }, 'preparing model')
  }
}
