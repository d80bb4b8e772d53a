import { rm } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { makeDirectory } from '#shared/config/directory.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { PreparationLock, readNote } from './lock.ts'

/*
 * Prepares an artefact once per machine, such as weights or a Python environment. If several processes need it, then one process prepares it. An
 * incomplete artefact is never visible. All processes read the state from disk:
 *
 *   absent → preparing → ready
 *                ↓ ↑
 *               failed
 */

const POLL_MS = 250
const RETRY_PREPARATION_MS = 60_000

export interface Prepared<Found> {
  /** Work directory next to the final path. Both are on one disk, so a rename can move the result. */
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
  /** Ends the wait or the work. Steps that are already finished may be reused by the next call. */
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
 * Ensures that an artefact exists, and returns the result of `thing.find`, such as its path.
 *
 * Concurrent calls share the work, even in several processes. One call works, and the others wait and report its progress. A call may be
 * interrupted at any point and repeated.
 *
 * @param make Builds the artefact below `workDir` and renames it to its final path
 * @throws Errors of `make`, or the abort reason
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
      // The computed fraction can decrease, because pip moves files out of the counted directory at the end of a step. The highest fraction so far is
      // reported instead.
      furthest = Math.max(furthest, fraction)
      lock.note(furthest, message)
      onProgress?.(furthest, message)
    })
    await lock.release()
  } catch (error) {
    // If this process did not renew its lock in time, then another process may have taken the lock and finished the work.
    if ((await thing.find()) !== undefined) return await lock.release()
    await (signal?.aborted ? lock.release() : lock.fail(error instanceof Error ? error.message : String(error)))
    throw error
  }
  await rm(thing.workDir, { recursive: true, force: true })
}

/** An artefact that a call needs. `state` reads whether it is ready, and `prepare` prepares it. */
interface Wanted<Found> {
  readonly state: () => Promise<PreparationState<Found>>
  /** Prepares the artefact. Undefined if another process does this. */
  readonly prepare: (() => Promise<unknown>) | undefined
}

/**
 * A preparation in the background for which calls wait. The first call starts it, and all calls wait until it ends. The wait counts toward the
 * deadline of a call, but not as a failed attempt.
 */
export class BackgroundPreparation {
  readonly #what: string
  #running: Promise<unknown> | undefined
  /** Last failure in this process. Usually the lock file contains the failure too, but on a full disk it cannot be written. */
  #failed: Extract<NotReady, { state: 'failed' }> | undefined

  /** @param what Name of the artefact, such as a model. Error messages for callers begin with it */
  constructor(what: string) {
    this.#what = what
  }

  /**
   * Returns data about the artefact, such as its path, when it is ready. Starts a preparation, unless one runs or failed within the last
   * minute.
   *
   * @param signal Ends the wait, but not the preparation
   * @throws ServiceError `model_loading` with the reason, if the preparation failed, or the abort reason of the signal
   */
  async wait<Found>({ state, prepare }: Wanted<Found>, signal: AbortSignal): Promise<Found> {
    for (;;) {
      signal.throwIfAborted()
      const found = await state()
      if (found.state === 'ready') return found.found
      const now = found.state === 'absent' ? (this.#failed ?? found) : found
      const failedAgoMs = now.state === 'failed' ? Date.now() - now.atMs : Number.POSITIVE_INFINITY
      if (now.state === 'failed' && failedAgoMs <= RETRY_PREPARATION_MS) {
        const message = `${this.#what} could not be prepared: ${now.reason}`
        throw new ServiceError('model_loading', message, { retryAfterMs: RETRY_PREPARATION_MS })
      }
      this.#start(prepare)
      // An abort rejects this sleep. The rejection is ignored, because the next iteration of the loop handles the
      // abort.
      await sleep(POLL_MS, undefined, { signal }).catch(() => {})
    }
  }

  async settled(): Promise<void> {
    await this.#running
  }

  #start(prepare: (() => Promise<unknown>) | undefined): void {
    if (this.#running) return
    this.#failed = undefined
    this.#running = prepare?.()
      .catch((error: unknown) => {
        this.#failed = {
          state: 'failed',
          reason: error instanceof Error ? error.message : String(error),
          atMs: Date.now(),
        }
      })
      .finally(() => {
        this.#running = undefined
      })
  }
}
