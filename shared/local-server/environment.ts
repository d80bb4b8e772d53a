import { readFile, rename, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ServiceError } from '#shared/error.ts'
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

/** How far a model of the server is. Those that every environment has are ready. */
export async function getModelState(environment: Environment, name: string): Promise<PreparationState<string>> {
  return await getPreparationState(modelIn(environment, name))
}

/** Makes sure that a model of the server is there, as {@link prepareEnvironment} does for the environment. */
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

/** Takes an environment away whose Python is gone. Another process may do the same. */
export async function discardEnvironment(environment: Environment): Promise<void> {
  await discardDirectory(environment.directory)
}

async function placeIn(parent: string): Promise<PreparedPlace> {
  return placeFor(parent, 'local-server', [await readFile(REQUIREMENTS), JSON.stringify(WEIGHT_WHEELS)])
}
