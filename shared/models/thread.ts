/** The thread that reads a models file again: a large one, or one that is made to, would hold the event loop for a minute. */
import { parentPort, workerData } from 'node:worker_threads'
import { ConfigError } from '#shared/config/config.ts'
import { readModels } from './models.ts'

parentPort?.postMessage(answer(String(workerData)))

function answer(path: string) {
  try {
    return { file: readModels(path) }
  } catch (error) {
    return { problems: error instanceof ConfigError ? error.problems : [`MODELS_FILE: ${path}: cannot be read`] }
  }
}
