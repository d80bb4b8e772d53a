import { stat } from 'node:fs/promises'
import { Worker } from 'node:worker_threads'
import type { ModelsFile } from '#schemas/models.ts'
import { ConfigError } from '#shared/config/config.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import { every } from '#shared/ticks.ts'
import { ModelCatalogue, readModels } from './models.ts'

/** How often it is looked whether the file has changed. */
const POLL_INTERVAL_MS = 1_000
/** Bytes of a file that is read in some milliseconds, with as many aliases as the parser lets it have. */
const SMALL_BYTES_MAX = 8 * 1024
/** How long reading a larger one may take, and which memory, in a thread of its own. */
const READ_MS_MAX = 60_000
const READ_MB_MAX = 512

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
  metrics.gauge('sluice_model_config_invalid', 'The models file changed and cannot be used', {}, () => Number(isWrong))
  metrics.gauge(
    'sluice_models_loaded_timestamp_seconds',
    'When the models file was read last',
    {},
    () => loadedAtMs / 1_000,
  )
  let isReading = false
  let isStale = false
  const readOnce = async () => {
    try {
      const { size } = await stat(path).catch(() => ({ size: 0 }))
      const { models, code } = size > SMALL_BYTES_MAX ? await readInThread(path) : readModels(path)
      catalogue.become(new ModelCatalogue(models, undefined, code.price))
      isWrong = false
      loadedAtMs = Date.now()
      log.info({ path, models: catalogue.models.length }, 'models read again')
    } catch (error) {
      isWrong = true
      const problems = error instanceof ConfigError ? error.problems : [String(error)]
      log.error({ path, problems }, 'models file not understood; the models stay as they are')
    }
  }
  // However often it is asked for meanwhile, it is read once more.
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
  const stopLooking = every(POLL_INTERVAL_MS, () => void look(), { keepsAlive: false })
  if (!hasTerminal) process.on('SIGHUP', read)
  return () => {
    stopLooking()
    process.off('SIGHUP', read)
  }
}

/** @throws ConfigError naming the file and every problem in it */
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

/** What changes with a file: also when another one takes its place. */
async function stampOf(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined)
  return found ? `${found.dev} ${found.ino} ${found.size} ${found.mtimeMs}` : 'none'
}
