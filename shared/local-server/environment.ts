import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import {
  discardDirectory,
  getDirectoryState,
  type PreparedPlace,
  placeFor,
  prepareDirectory,
} from '#shared/prepare/directory.ts'
import type { PreparationState, PrepareOptions } from '#shared/prepare/prepare.ts'
import type { Python } from '#shared/prepare/python.ts'
import { buildEnvironment } from './environment-build.ts'
import { WEIGHT_WHEELS } from './weights-manifest.ts'

/*
 * What the local model server needs: its Python packages and its models, in one directory that is prepared once. It is
 * taken away when the Python is replaced that it was built with.
 */

const REQUIREMENTS = fileURLToPath(new URL('./python/requirements.txt', import.meta.url))

/** An environment that can be used. */
export interface Environment {
  readonly directory: string
  /** The Python it was built with; its binary packages fit no other version. */
  readonly python: Python
}

/** How far the environment below `parent` is, whichever process prepares it. */
export async function getEnvironmentState(parent: string): Promise<PreparationState<Environment>> {
  const place = await placeIn(parent)
  const state = await getDirectoryState<Python>(place)
  if (state.state !== 'ready') return state
  return { state: 'ready', found: { directory: place.directory, python: state.found } }
}

/**
 * Makes sure that the environment is there, and gives it.
 *
 * Does nothing when it is. Several calls, also of several processes, share the work. Safe to interrupt at any point:
 * finished steps are kept for the next time.
 *
 * @throws ServiceError `model_loading` saying in one line what is missing (Python, pip, the network), or the abort reason
 */
export async function prepareEnvironment(parent: string, options: PrepareOptions = {}): Promise<Environment> {
  const place = await placeIn(parent)
  const python = await prepareDirectory(
    place,
    (built, workDir, onProgress) => buildEnvironment(built, workDir, REQUIREMENTS, { ...options, onProgress }),
    options,
  )
  return { directory: place.directory, python }
}

/** Takes an environment away whose Python is gone. Another process may do the same. */
export async function discardEnvironment(environment: Environment): Promise<void> {
  await discardDirectory(environment.directory)
}

async function placeIn(parent: string): Promise<PreparedPlace> {
  return placeFor(parent, 'local-server', [await readFile(REQUIREMENTS), JSON.stringify(WEIGHT_WHEELS)])
}
