import { createHash } from 'node:crypto'
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { PreparationLock, readNote } from '#shared/engines/weights-lock.ts'
import { buildEnvironment } from './environment-build.ts'
import type { Python } from './python.ts'
import { WEIGHT_WHEELS } from './weights-manifest.ts'

/*
 * What the local model server needs: its Python packages and its models, in one directory that is built once, beside
 * its place, and moved there whole. The name says what is in it, so another version of either is another directory.
 *
 *   absent → preparing → ready → (Python replaced) → absent
 *               ↓  ↑
 *             failed
 */

/** How often a process looks whether another one is done. */
const POLL_MS = 250

const READY = 'ready.json'
const REQUIREMENTS = fileURLToPath(new URL('./python/requirements.txt', import.meta.url))

/** An environment that can be used. */
export interface Environment {
  readonly directory: string
  /** The Python it was built with; its binary packages fit no other version. */
  readonly python: Python
}

/** How far the environment is. */
export type EnvironmentState =
  | { readonly state: 'absent' }
  | { readonly state: 'preparing'; readonly fraction: number; readonly message: string }
  | { readonly state: 'ready'; readonly environment: Environment }
  | { readonly state: 'failed'; readonly reason: string; readonly atMs: number }

/** What a preparation takes. */
export interface PrepareOptions {
  /** Hears of progress, also of another process that does the work; fraction 0..1. */
  readonly onProgress?: ((fraction: number, message: string) => void) | undefined
  /** Stops the wait and the work. Finished steps are kept for the next time. */
  readonly signal?: AbortSignal | undefined
  /** The Python to use; default python3 of the PATH. */
  readonly python?: string | undefined
}

/** How far the environment below `parent` is, whichever process prepares it. */
export async function getEnvironmentState(parent: string): Promise<EnvironmentState> {
  const { directory, workDir } = await placesIn(parent)
  const text = await readFile(join(directory, READY), 'utf8').catch(() => undefined)
  if (text === undefined) return (await readNote(workDir)) ?? { state: 'absent' }
  return { state: 'ready', environment: { directory, python: JSON.parse(text) as Python } }
}

/**
 * Makes sure that the environment is there, and gives it.
 *
 * Does nothing when it is. Several calls, also of several processes, share the work. Safe to interrupt at any point.
 *
 * @throws ServiceError `model_loading` saying in one line what is missing (Python, pip, the network), or the abort reason
 */
export async function prepareEnvironment(parent: string, options: PrepareOptions = {}): Promise<Environment> {
  const { workDir } = await placesIn(parent)
  for (;;) {
    options.signal?.throwIfAborted()
    const state = await getEnvironmentState(parent)
    if (state.state === 'ready') {
      options.onProgress?.(1, 'ready')
      return state.environment
    }
    await mkdir(workDir, { recursive: true })
    const lock = await PreparationLock.take(workDir)
    if (lock) await prepareLocked(parent, lock, options)
    else {
      if (state.state === 'preparing') options.onProgress?.(state.fraction, state.message)
      await sleep(POLL_MS, undefined, { signal: options.signal })
    }
  }
}

/** Takes an environment away whose Python is gone. Another process may do the same. */
export async function discardEnvironment(environment: Environment): Promise<void> {
  const grave = `${environment.directory}.${process.pid}.old`
  await rename(environment.directory, grave).catch(() => {})
  await rm(grave, { recursive: true, force: true })
}

async function prepareLocked(parent: string, lock: PreparationLock, options: PrepareOptions): Promise<void> {
  const { directory, workDir } = await placesIn(parent)
  let furthest = 0
  const onProgress = (fraction: number, message: string) => {
    // pip moves the files it has written: the bytes that are counted shrink at the end of each step.
    furthest = Math.max(furthest, fraction)
    lock.note(furthest, message)
    options.onProgress?.(furthest, message)
  }
  try {
    const built = join(workDir, 'built')
    const python = await buildEnvironment(built, workDir, REQUIREMENTS, { ...options, onProgress })
    await writeFile(join(built, READY), JSON.stringify(python))
    await rename(built, directory)
    await lock.release()
  } catch (error) {
    // Whoever took over a preparation that seemed dead may have been quicker.
    if ((await getEnvironmentState(parent)).state === 'ready') return await lock.release()
    await (options.signal?.aborted ? lock.release() : lock.fail(error instanceof Error ? error.message : String(error)))
    throw error
  }
  await rm(workDir, { recursive: true, force: true })
}

async function placesIn(parent: string): Promise<{ directory: string; workDir: string }> {
  const hash = createHash('sha256')
    .update(await readFile(REQUIREMENTS))
    .update(JSON.stringify(WEIGHT_WHEELS))
  const name = `local-server-${hash.digest('hex').slice(0, 12)}`
  return { directory: join(parent, name), workDir: join(parent, `.${name}`) }
}
