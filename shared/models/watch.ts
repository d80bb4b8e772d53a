import { stat } from 'node:fs/promises'
import { Worker } from 'node:worker_threads'
import type { ModelsFile } from '#schemas/models.ts'
import { ConfigError } from '#shared/config/config.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import { ModelCatalogue, readModels } from './models.ts'

const POLL_INTERVAL_MS = 1_000
/**
 * Maximum bytes of a file that is parsed on the event loop instead of a thread. Even with as many YAML aliases as possible, parsing it takes a few
 * milliseconds.
 */
const SMALL_BYTES_MAX = 8 * 1024
const READ_MS_MAX = 60_000
const READ_MB_MAX = 512

export interface WatchOptions {
  readonly path: string
  readonly log: Log
  readonly metrics: Pick<Metrics, 'gauge'>
  /**
   * True if the process has a terminal. SIGHUP then ends the process, because the terminal was closed. Without a terminal, SIGHUP reloads the file.
   */
  readonly hasTerminal: boolean
}

/**
 * Reloads models.yaml when it has changed, and on SIGHUP. An invalid file is ignored, and reported in the log and by a metric until it is fixed.
 *
 * The file is polled, because file system events would miss changes. Kubernetes changes a ConfigMap by replacing a symbolic link some folders above,
 * and network file systems send no events.
 *
 * @returns A function that stops the watch
 */
export function watchModels(catalogue: ModelCatalogue, { path, log, metrics, hasTerminal }: WatchOptions): () => void {
  let isWrong = false
  let loadedAtMs = Date.now()
  let seen: string | undefined
  metrics.gauge('sluice_model_config_invalid', {}, () => Number(isWrong))
  metrics.gauge('sluice_models_loaded_timestamp_seconds', {}, () => loadedAtMs / 1_000)
  let isReading = false
  let isStale = false
  const readOnce = async () => {
    try {
      const { size } = await stat(path).catch(() => ({ size: 0 }))
      const { models, code } = size > SMALL_BYTES_MAX ? await readInThread(path) : readModels(path)
      catalogue.become(new ModelCatalogue(models, undefined, code.price))
      isWrong = false
      loadedAtMs = Date.now()
      log.info({ path, models: catalogue.models.length }, 'models reloaded')
    } catch (error) {
      isWrong = true
      const problems = error instanceof ConfigError ? error.problems : [String(error)]
      log.error({ path, problems }, 'models file invalid; models unchanged')
    }
  }
  // Reads the file. If requests arrive during a reload, then one more reload follows for all of them.
  const readAll = async () => {
    isReading = true
    do {
      isStale = false
      await readOnce()
    } while (isStale)
    isReading = false
  }
  const read = () => {
    isStale = true
    if (!isReading) void readAll()
  }
  const look = async () => {
    const now = await stampOf(path)
    if (seen !== undefined && now !== seen) read()
    seen = now
  }
  void look()
  const stopLooking = atAlignedInterval(POLL_INTERVAL_MS, () => void look(), { keepsAlive: false })
  if (!hasTerminal) process.on('SIGHUP', read)
  return () => {
    stopLooking()
    process.off('SIGHUP', read)
  }
}

async function readInThread(path: string): Promise<ModelsFile> {
  const resourceLimits = { maxOldGenerationSizeMb: READ_MB_MAX }
  const worker = new Worker(new URL('./thread.ts', import.meta.url), { workerData: path, resourceLimits })
  worker.unref()
  const { promise, resolve, reject } = Promise.withResolvers<{ file: ModelsFile } | { problems: readonly string[] }>()
  const fail = (why: string) => reject(new ConfigError([`MODELS_FILE: ${path}: ${why}`]))
  const timer = setTimeout(() => fail(`could not be read within ${READ_MS_MAX} ms`), READ_MS_MAX).unref()
  worker.once('message', resolve)
  worker.once('error', (error) => fail(`could not be read: ${error.message}`))
  worker.once('exit', () => fail('could not be read'))
  try {
    const answer = await promise
    if ('file' in answer) return answer.file
    throw new ConfigError(answer.problems)
  } finally {
    clearTimeout(timer)
    await worker.terminate()
  }
}

async function stampOf(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined)
  return found ? `${found.dev} ${found.ino} ${found.size} ${found.mtimeMs}` : 'none'
}
