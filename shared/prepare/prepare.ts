import { rm } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeDirectory } from '#shared/directory.ts'
import { ServiceError } from '#shared/error.ts'
import { PreparationLock, readNote } from './lock.ts'

/*
 * Something that is made once for this machine: by one of many processes, whole or not at all. Its states are read from
 * disk, so that any process sees what any other does:
 *
 *   absent → preparing → ready
 *               ↓  ↑
 *             failed
 */

/** How often a process looks whether another one is done. */
const POLL_MS = 250
/** How long after a failed preparation a call may start the next. */
const RETRY_PREPARATION_MS = 60_000
/** What callers are told to wait meanwhile. */
const RETRY_AFTER_MS = 5_000

/** What is made, and how to know that it is there. */
export interface Prepared<Found> {
  /** Where it is made: beside its place, on the same disk. */
  readonly workDir: string
  /** What its users must know of it; undefined when it is not there, or not whole. */
  find(): Promise<Found | undefined>
}

/** It cannot be used. */
type NotReady =
  | { readonly state: 'absent' }
  | { readonly state: 'preparing'; readonly fraction: number; readonly message: string }
  | { readonly state: 'failed'; readonly reason: string; readonly atMs: number }

/** How far it is, whichever process makes it. */
export type PreparationState<Found> = NotReady | { readonly state: 'ready'; readonly found: Found }

/** Hears how far a preparation is; fraction 0..1. */
export type OnProgress = (fraction: number, message: string) => void

/** What a preparation takes. */
export interface PrepareOptions {
  /** Hears of progress, also of another process that does the work; never less than before. */
  readonly onProgress?: OnProgress | undefined
  /** Stops the wait and the work. Steps that are complete may be kept for the next time. */
  readonly signal?: AbortSignal | undefined
  /** Make nothing: throw when it is not there. */
  readonly isLookOnly?: boolean | undefined
  /** The Python to use where one is; default python3 of the PATH. */
  readonly python?: string | undefined
}

/** How far something is: for readiness checks, logs and errors. */
export async function getPreparationState<Found>(thing: Prepared<Found>): Promise<PreparationState<Found>> {
  const found = await thing.find()
  if (found !== undefined) return { state: 'ready', found }
  return (await readNote(thing.workDir)) ?? { state: 'absent' }
}

/**
 * Makes sure that something is there, and gives what its users must know of it.
 *
 * Does nothing when it is there. Several calls, also of several processes, share the work: the others wait and hear its
 * progress. Safe to interrupt at any point and to call again.
 *
 * @param make Makes it below `workDir`, and moves it into its place in one step.
 * @throws whatever `make` throws, or the abort reason
 */
export async function prepareOnce<Found>(
  thing: Prepared<Found>,
  make: (onProgress: OnProgress) => Promise<void>,
  options: PrepareOptions,
): Promise<Found> {
  for (;;) {
    options.signal?.throwIfAborted()
    const state = await getPreparationState(thing)
    if (state.state === 'ready') {
      options.onProgress?.(1, 'ready')
      return state.found
    }
    if (options.isLookOnly) throw new ServiceError('sandbox_unavailable', 'It is not prepared yet.')
    makeDirectory(thing.workDir)
    const lock = await PreparationLock.take(thing.workDir)
    if (lock) await makeLocked(thing, make, lock, options)
    else {
      if (state.state === 'preparing') options.onProgress?.(state.fraction, state.message)
      await sleep(POLL_MS, undefined, { signal: options.signal })
    }
  }
}

async function makeLocked<Found>(
  thing: Prepared<Found>,
  make: (onProgress: OnProgress) => Promise<void>,
  lock: PreparationLock,
  { onProgress, signal }: PrepareOptions,
): Promise<void> {
  let furthest = 0
  try {
    await make((fraction, message) => {
      // pip moves the files it has written: the bytes that are counted shrink at the end of each step.
      furthest = Math.max(furthest, fraction)
      lock.note(furthest, message)
      onProgress?.(furthest, message)
    })
    await lock.release()
  } catch (error) {
    // Whoever took over a preparation that seemed dead may have been quicker.
    if ((await thing.find()) !== undefined) return await lock.release()
    await (signal?.aborted ? lock.release() : lock.fail(error instanceof Error ? error.message : String(error)))
    throw error
  }
  await rm(thing.workDir, { recursive: true, force: true })
}

/** The preparation that calls begin when they find something missing. */
export class BackgroundPreparation {
  readonly #what: string
  readonly #prepare: (() => Promise<unknown>) | undefined
  #running: Promise<unknown> | undefined

  /** @param what Begins what callers are told. @param prepare Undefined: somebody else does. */
  constructor(what: string, prepare: (() => Promise<unknown>) | undefined) {
    this.#what = what
    this.#prepare = prepare
  }

  /** Begins a preparation, unless one runs or failed lately. @returns `model_loading`: how far it is, when to come again */
  begin(state: NotReady): ServiceError {
    const failedAgoMs = state.state === 'failed' ? Date.now() - state.atMs : Number.POSITIVE_INFINITY
    if (failedAgoMs > RETRY_PREPARATION_MS) this.#start()
    if (state.state === 'failed') {
      const message = `${this.#what} could not be prepared: ${state.reason}`
      return new ServiceError('model_loading', message, { retryAfterMs: RETRY_PREPARATION_MS })
    }
    const percent = state.state === 'preparing' ? Math.floor(100 * state.fraction) : 0
    const message = `${this.#what} is being prepared (${percent} %). Try again shortly.`
    return new ServiceError('model_loading', message, { retryAfterMs: RETRY_AFTER_MS })
  }

  /** Waits for the one that runs, however it ends. */
  async settled(): Promise<void> {
    await this.#running
  }

  #start(): void {
    this.#running ??= this.#prepare?.()
      // Why it failed is written beside the thing, where readiness and the next call find it.
      .catch(() => {})
      .finally(() => {
        this.#running = undefined
      })
  }
}
