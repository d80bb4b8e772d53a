import { createHash } from 'node:crypto'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeDirectory } from '#shared/directory.ts'
import { ServiceError } from '#shared/error.ts'
import { PreparationLock, readNote } from './lock.ts'

/*
 * A directory that is made once for this machine: built beside its place and moved there whole. Its name says what is
 * in it, so another version of that is another directory.
 *
 *   absent → preparing → ready
 *               ↓  ↑
 *             failed
 */

/** How often a process looks whether another one is done. */
const POLL_MS = 250
/** Written last into a directory: what its users must know of it. */
const READY = 'ready.json'

/** Where it is, and where it is made. */
export interface PreparedPlace {
  /** Names its contents. */
  readonly tag: string
  readonly directory: string
  readonly workDir: string
}

/** How far it is, whichever process makes it. `facts` are what its builder gave. */
export type DirectoryState<Facts> =
  | { readonly state: 'absent' }
  | { readonly state: 'preparing'; readonly fraction: number; readonly message: string }
  | { readonly state: 'ready'; readonly facts: Facts }
  | { readonly state: 'failed'; readonly reason: string; readonly atMs: number }

/** What a preparation takes. */
export interface PrepareDirectoryOptions {
  /** Hears of progress, also of another process that does the work; fraction 0..1, never less than before. */
  readonly onProgress?: ((fraction: number, message: string) => void) | undefined
  /** Stops the wait and the work. */
  readonly signal?: AbortSignal | undefined
  /** Make nothing: throw when it is not there. */
  readonly isLookOnly?: boolean | undefined
}

/** Fills `built`, which may hold the finished steps of an interrupted call, and gives facts for its users (JSON). */
export type BuildDirectory<Facts> = (
  built: string,
  workDir: string,
  onProgress: (fraction: number, message: string) => void,
) => Promise<Facts>

/** The place below `parent` of a directory with these contents. */
export function placeFor(parent: string, name: string, contents: readonly (string | Uint8Array)[]): PreparedPlace {
  const hash = createHash('sha256')
  for (const content of contents) hash.update(content)
  const tag = hash.digest('hex').slice(0, 12)
  const full = `${name}-${tag}`
  return { tag, directory: join(parent, full), workDir: join(parent, `.${full}`) }
}

/** How far a directory is. */
export async function getDirectoryState<Facts>(place: PreparedPlace): Promise<DirectoryState<Facts>> {
  const text = await readFile(join(place.directory, READY), 'utf8').catch(() => undefined)
  if (text === undefined) return (await readNote(place.workDir)) ?? { state: 'absent' }
  return { state: 'ready', facts: JSON.parse(text) as Facts }
}

/**
 * Makes sure that a directory is there, and gives its facts.
 *
 * Does nothing when it is. Several calls, also of several processes, share the work. Safe to interrupt at any point.
 *
 * @throws whatever `build` throws, or the abort reason
 */
export async function prepareDirectory<Facts>(
  place: PreparedPlace,
  build: BuildDirectory<Facts>,
  options: PrepareDirectoryOptions = {},
): Promise<Facts> {
  for (;;) {
    options.signal?.throwIfAborted()
    const state = await getDirectoryState<Facts>(place)
    if (state.state === 'ready') {
      options.onProgress?.(1, 'ready')
      return state.facts
    }
    if (options.isLookOnly) throw new ServiceError('sandbox_unavailable', 'It is not prepared yet.')
    makeDirectory(place.workDir)
    const lock = await PreparationLock.take(place.workDir)
    if (lock) await prepareLocked(place, build, lock, options)
    else {
      if (state.state === 'preparing') options.onProgress?.(state.fraction, state.message)
      await sleep(POLL_MS, undefined, { signal: options.signal })
    }
  }
}

/** Takes a directory away. Another process may do the same. */
export async function discardDirectory(directory: string): Promise<void> {
  const grave = `${directory}.${process.pid}.old`
  await rename(directory, grave).catch(() => {})
  await rm(grave, { recursive: true, force: true })
}

async function prepareLocked<Facts>(
  place: PreparedPlace,
  build: BuildDirectory<Facts>,
  lock: PreparationLock,
  options: PrepareDirectoryOptions,
): Promise<void> {
  const { directory, workDir } = place
  let furthest = 0
  const onProgress = (fraction: number, message: string) => {
    // pip moves the files it has written: the bytes that are counted shrink at the end of each step.
    furthest = Math.max(furthest, fraction)
    lock.note(furthest, message)
    options.onProgress?.(furthest, message)
  }
  try {
    const built = join(workDir, 'built')
    const facts = await build(built, workDir, onProgress)
    await writeFile(join(built, READY), JSON.stringify(facts))
    await rename(built, directory)
    await lock.release()
  } catch (error) {
    // Whoever took over a preparation that seemed dead may have been quicker.
    if ((await getDirectoryState(place)).state === 'ready') return await lock.release()
    await (options.signal?.aborted ? lock.release() : lock.fail(error instanceof Error ? error.message : String(error)))
    throw error
  }
  await rm(workDir, { recursive: true, force: true })
}
