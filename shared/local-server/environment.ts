import { readFile, rename, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ServiceError } from '#shared/lib/error.ts'
import {
  discardDirectory,
  getDirectoryState,
  type PreparedPlace,
  placeFor,
  prepareDirectory,
} from '#shared/prepare/directory.ts'
import {
  getPreparationState,
  type PreparationState,
  type Prepared,
  type PrepareOptions,
  prepareOnce,
} from '#shared/prepare/prepare.ts'
import type { Python } from '#shared/prepare/python.ts'
import { buildEnvironment, buildModel } from './environment-build.ts'
import { OPTIONAL_MODELS, WEIGHT_WHEELS } from './weights-manifest.ts'

/*
 * The environment of the local model server: its Python packages and models in one directory, which is prepared once. If the Python
 * that built the environment is replaced by another version, then the directory is removed and prepared again.
 */

const REQUIREMENTS = fileURLToPath(new URL('./python/requirements.txt', import.meta.url))

export interface Environment {
  readonly directory: string
  /** The Python that built the environment. The environment's binary packages work only with this version. */
  readonly python: Python
}

export async function getEnvironmentState(parent: string): Promise<PreparationState<Environment>> {
  const place = await placeIn(parent)
  const state = await getDirectoryState<Python>(place)
  if (state.state !== 'ready') return state
  return { state: 'ready', found: { directory: place.directory, python: state.found } }
}

/**
 * Prepares the environment if it is absent, and returns it. Concurrent calls share the work, even if they run in several processes.
 * If a call is interrupted, then the next call continues after the finished steps.
 *
 * @throws ServiceError `model_loading` with one line about the missing dependency (Python, pip, the network); the abort reason
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

export async function getModelState(environment: Environment, name: string): Promise<PreparationState<string>> {
  return await getPreparationState(modelIn(environment, name))
}

/** Prepares an optional model if it is absent. Concurrency, interruption and errors are as for {@link prepareEnvironment}. */
export async function prepareModel(
  environment: Environment,
  name: string,
  options: PrepareOptions = {},
): Promise<string> {
  const thing = modelIn(environment, name)
  const { python } = environment
  return await prepareOnce(
    thing,
    async (onProgress) => {
      const model = OPTIONAL_MODELS[name]
      if (!model) throw new ServiceError('model_loading', `There is no model named ${name}.`)
      const built = await buildModel(name, model, thing.workDir, python, { ...options, onProgress })
      await rename(built, join(environment.directory, 'models', name))
    },
    options,
  )
}

function modelIn({ directory }: Environment, name: string): Prepared<string> {
  const place = join(directory, 'models', name)
  const find = async () => ((await stat(place).catch(() => undefined)) ? place : undefined)
  return { workDir: join(directory, 'models', `.${name}`), find }
}

export async function discardEnvironment(environment: Environment): Promise<void> {
  await discardDirectory(environment.directory)
}

async function placeIn(parent: string): Promise<PreparedPlace> {
  return placeFor(parent, 'local-server', [await readFile(REQUIREMENTS), JSON.stringify(WEIGHT_WHEELS)])
}
