import { stat } from 'node:fs/promises'
import { ConfigError } from './config/config.ts'
import type { Log } from './log/log.ts'
import type { Metrics } from './metrics.ts'
import { loadModels, type ModelCatalogue } from './models.ts'

/** How often it is looked whether the file has changed. */
const LOOK_MS = 1_000

/** What {@link watchModels} needs. */
export interface WatchOptions {
  readonly path: string
  readonly log: Log
  readonly metrics: Pick<Metrics, 'gauge'>
  /** A hang-up of the terminal ends the process, as it does others; without one it asks to read the file again. */
  readonly hasTerminal: boolean
}

/**
 * Reads models.yaml again when it has changed, and on SIGHUP. A file that is wrong changes nothing: the log and a metric
 * say so until it is right.
 *
 * It is looked at rather than listened to: a ConfigMap of Kubernetes changes by a symbolic link some folders above, and
 * network file systems tell nobody.
 *
 * @returns What ends it
 */
export function watchModels(catalogue: ModelCatalogue, { path, log, metrics, hasTerminal }: WatchOptions): () => void {
  let isWrong = false
  let loadedAtMs = Date.now()
  let seen: string | undefined
  metrics.gauge('sluice_models_file_wrong', 'The models file changed and cannot be used', {}, () => Number(isWrong))
  metrics.gauge(
    'sluice_models_loaded_timestamp_seconds',
    'When the models file was read last',
    {},
    () => loadedAtMs / 1_000,
  )
  const read = () => {
    try {
      catalogue.become(loadModels(path))
      isWrong = false
      loadedAtMs = Date.now()
      log.info({ path, models: catalogue.models.length }, 'models read again')
    } catch (error) {
      isWrong = true
      const problems = error instanceof ConfigError ? error.problems : [String(error)]
      log.error({ path, problems }, 'models file not understood; the models stay as they are')
    }
  }
  const look = async () => {
    const now = await stampOf(path)
    if (seen !== undefined && now !== seen) read()
    seen = now
  }
  void look()
  const timer = setInterval(() => void look(), LOOK_MS).unref()
  if (!hasTerminal) process.on('SIGHUP', read)
  return () => {
    clearInterval(timer)
    process.off('SIGHUP', read)
  }
}

/** What changes with a file: also when another one takes its place. */
async function stampOf(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined)
  return found ? `${found.dev} ${found.ino} ${found.size} ${found.mtimeMs}` : 'none'
}
