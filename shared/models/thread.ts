/** Worker thread that parses a changed models file. On the event loop, a large or malicious file would block all calls for up to a minute. */
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
