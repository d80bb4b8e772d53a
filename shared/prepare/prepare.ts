import { rm } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeDirectory } from '#shared/config/directory.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { PreparationLock, readNote } from './lock.ts'

/*
 * Prepares an artefact once per machine, such as weights or a Python environment. One of many processes does the work, and the
 * artefact is never visible in part. All processes read the state from disk:
 *
 *   absent → preparing → ready
 *                ↓ ↑
 *               failed
 */

const POLL_MS = 250
const RETRY_PREPARATION_MS = 60_000
const RETRY_AFTER_MS = 5_000

export interface Prepared<Found> {
  /** The work directory is next to the final path, so that both are on one disk. */
  readonly workDir: string
  find(): Promise<Found | undefined>
}

type NotReady =
  | { readonly state: 'absent' }
  | { readonly state: 'preparing'; readonly fraction: number; readonly message: string }
  | { readonly state: 'failed'; readonly reason: string; readonly atMs: number }

export type PreparationState<Found> = NotReady | { readonly state: 'ready'; readonly found: Found }

export type OnProgress = (fraction: number, message: string) => void

export interface PrepareOptions {
  /** Called with the progress, even if another process does the work. The fraction never decreases. */
  readonly onProgress?: OnProgress | undefined
  /** Stops the wait or the work. Finished steps may be kept for the next attempt. */
  readonly signal?: AbortSignal | undefined
  readonly checksOnly?: boolean | undefined
  readonly python?: string | undefined
}

export async function getPreparationState<Found>(thing: Prepared<Found>): Promise<PreparationState<Found>> {
  const found = await thing.find()
  if (found !== undefined) return { state: 'ready', found }
  return (await readNote(thing.workDir)) ?? { state: 'absent' }
}

/**
 * Ensures that an artefact exists, and returns its facts.
 *
 * Concurrent calls share the work, even in several processes: one works, and the others wait and report its progress. A call may be
 * interrupted at any point and repeated.
 *
 * @param make Builds the artefact below `workDir` and renames it to its final path
 * @throws Errors of `make`; the abort reason
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
    if (options.checksOnly) throw new ServiceError('sandbox_unavailable', 'The sandbox has not been prepared yet.')
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
      // When a step of pip ends, its files leave the counted directory, so the fraction would decrease. The highest fraction so far is
      // reported instead.
      furthest = Math.max(furthest, fraction)
      lock.note(furthest, message)
      onProgress?.(furthest, message)
    })
    await lock.release()
  } catch (error) {
    // Another process may have taken over because this one seemed dead, and may have finished.
    if ((await thing.find()) !== undefined) return await lock.release()
    await (signal?.aborted ? lock.release() : lock.fail(error instanceof Error ? error.message : String(error)))
    throw error
  }
  await rm(thing.workDir, { recursive: true, force: true })
}

export class BackgroundPreparation {
  readonly #what: string
  readonly #prepare: (() => Promise<unknown>) | undefined
  #running: Promise<unknown> | undefined

  /** @param what Subject of the messages to callers @param prepare Undefined if another process does the preparation */
  constructor(what: string, prepare: (() => Promise<unknown>) | undefined) {
    this.#what = what
    this.#prepare = prepare
  }

  /**
   * Starts a preparation, unless one runs or failed within the last minute. @returns Error `model_loading` for the call that needs
   * the artefact
   */
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

  async settled(): Promise<void> {
    await this.#running
  }

  #start(): void {
    this.#running ??= this.#prepare?.()
      // The lock file contains the reason, for readiness checks and the next call.
      .catch(() => {})
      .finally(() => {
        this.#running = undefined
      })
  }
}
