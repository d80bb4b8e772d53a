/*
 * Waiting and running work of the whole fleet, as the processes publish it with their capacity (`presence.ts`).
 *
 * 1. An ingress publishes its attached calls by pool and model: queued, running, and the start of the oldest wait.
 * 2. A scheduler publishes the queued durable jobs of the store.
 * 3. A worker publishes the attempts in progress by model, and how long recent attempts took.
 *
 * Every process can therefore show the work of the fleet and compute the number of workers that a pool needs. No process queries another one. The
 * numbers are up to two seconds old.
 *
 * An autoscaler reads the wanted number of workers (docs/operate/scale.md, Autoscaling): the needed slots, divided by the slots of one worker. The
 * needed slots are those of the running jobs, plus as many as finish all waiting jobs within {@link DRAIN_SECONDS}:
 * `slots = running + waiting × seconds / DRAIN_SECONDS`, where `seconds` is the measured duration of a job.
 *
 * Example: 8 slots per worker, 8 jobs run, 120 wait, and a job takes 4 s. The result is (8 + 120 × 4 / 60) / 8 = 2 workers.
 *
 * Hysteresis: a larger number applies at once. A smaller number applies only after {@link HOLD_MS} in which every value was smaller. Without this
 * delay, each gap between two bursts would stop workers.
 */

import { hostname } from 'node:os'
import type { PoolName } from '#schemas/job.ts'
import type { Capacity } from '#shared/capacity/bulkheads.ts'
import type { Peer } from './peers.ts'

export type Work = NonNullable<Capacity['work']>[number]

/** Maximum number of models per record. The models with the most work are published. */
const ROWS_MAX = 100
/**
 * When an attempt ends, the number and the total duration of earlier attempts are multiplied by this factor. A mean therefore covers about the last
 * 50 attempts.
 */
const DECAY = 0.98
const MODELS_MAX = 1_000

/** Returns the record in which a process without slots, such as an ingress, publishes its waiting and running work. */
export function workOnly(rows: readonly Work[]): Capacity {
  const self = { host: hostname(), pid: process.pid }
  return { models: [], concurrency_limits: [], backlog: [], ...self, work: largest(rows) }
}

function largest(rows: readonly Work[]): Work[] {
  if (rows.length <= ROWS_MAX) return [...rows]
  return rows.toSorted((a, b) => b.queued + b.running - a.queued - a.running).slice(0, ROWS_MAX)
}

/** Durations of the recent attempts of one worker, by model. */
export class AttemptTimes {
  readonly #times = new Map<string, { ended: number; busyMs: number }>()

  ended(model: string, durationMs: number): void {
    const { ended, busyMs } = this.#times.get(model) ?? { ended: 0, busyMs: 0 }
    if (!this.#times.has(model) && this.#times.size >= MODELS_MAX) this.#times.clear()
    this.#times.set(model, { ended: ended * DECAY + 1, busyMs: busyMs * DECAY + durationMs })
  }

  /**
   * Returns the work that the worker publishes: running attempts and mean durations, by model.
   *
   * @param running Attempts in progress by model
   */
  rows(pool: PoolName, running: ReadonlyMap<string, number>): Work[] {
    const models = new Set([...running.keys(), ...this.#times.keys()])
    return largest(
      [...models].map((model) => {
        const { ended = 0, busyMs = 0 } = this.#times.get(model) ?? {}
        const times = ended === 0 ? {} : { ended: Math.round(ended), busy_ms: Math.round(busyMs) }
        return { pool, model, queued: 0, running: running.get(model) ?? 0, ...times }
      }),
    )
  }
}

export interface ModelWork {
  readonly model: string
  /** Attached calls and durable jobs that wait. */
  queued: number
  running: number
  /** Mean duration of recent attempts in seconds. Undefined before the first attempt has ended. */
  readonly seconds: number | undefined
}

export interface PoolWork {
  /** Attached calls of all ingresses. */
  readonly calls: { queued: number; running: number }
  readonly models: ReadonlyMap<string, ModelWork>
}

/**
 * Adds up the queued and running calls and jobs that the processes have published for a pool, in total and by model.
 *
 * @param own Rows of this process, which replace its older published rows
 */
export function workOf(peers: Iterable<Peer>, pool: PoolName, own?: { boot: string; rows: readonly Work[] }): PoolWork {
  const calls = { queued: 0, running: 0 }
  const models = new Map<string, ModelWork & { ended: number; busyMs: number; attached: number }>()
  const of = (model: string) => {
    const known = models.get(model)
    if (known) return known
    const empty = { ended: 0, busyMs: 0, queued: 0, running: 0, attached: 0 }
    const created = {
      ...empty,
      model,
      get seconds(): number | undefined {
        return this.ended === 0 ? undefined : this.busyMs / this.ended / 1_000
      },
    }
    models.set(model, created)
    return created
  }
  let inStore: readonly Work[] = []
  for (const { boot, role, capacity } of peers) {
    const rows = (boot === own?.boot ? own.rows : (capacity?.work ?? [])).filter((row) => row.pool === pool)
    // All schedulers count the jobs of the same store. Their reports are therefore not added up, and only the report with the most jobs is used.
    if (role === 'scheduler') inStore = queuedIn(rows) > queuedIn(inStore) ? rows : inStore
    else if (role === 'ingress')
      for (const { model, queued, running } of rows) {
        calls.queued += queued
        calls.running += running
        of(model).queued += queued
        of(model).attached += running
      }
    else
      for (const { model, running, ended = 0, busy_ms = 0 } of rows) {
        const work = of(model)
        work.running += running
        work.ended += ended
        work.busyMs += busy_ms
      }
  }
  for (const { model, queued } of inStore) of(model).queued += queued
  // Workers of an earlier version publish no work. Their running attached calls are therefore taken from the reports of
  // the ingresses.
  for (const work of models.values()) work.running = Math.max(work.running, work.attached)
  return { calls, models }
}

function queuedIn(rows: readonly Work[]): number {
  return rows.reduce((sum, { queued }) => sum + queued, 0)
}

/** Time within which the wanted number of workers finishes the waiting work, in seconds. */
const DRAIN_SECONDS = 60
const HOLD_MS = 300_000
/**
 * Maximum number of keys (pools or models) with a stored value. If there are more, then all stored values are dropped. The next value of each key is
 * then reported at once, even if it is smaller than the dropped value.
 */
const KEYS_MAX = 10_000

export interface Load {
  readonly queued: number
  readonly running: number
  /** Mean duration of a job, in seconds. If unknown, then each waiting job counts as one slot. */
  readonly seconds: number | undefined
}

export function slotsNeeded(loads: Iterable<Load>): number {
  let slots = 0
  for (const { queued, running, seconds = DRAIN_SECONDS } of loads)
    slots += running + Math.min(queued, (queued * seconds) / DRAIN_SECONDS)
  return slots
}

/**
 * Seconds until all waiting jobs have started, at the measured rate.
 *
 * @param slots Slots that serve these jobs
 * @returns Undefined if no slot serves them or if no job has ended yet
 */
export function secondsToEmpty(loads: Iterable<Load>, slots: number): number | undefined {
  let work = 0
  for (const { queued, seconds } of loads) {
    if (queued > 0 && (seconds === undefined || slots === 0)) return undefined
    work += queued * (seconds ?? 0)
  }
  return work === 0 ? 0 : work / slots
}

interface Held {
  value: number
  /**
   * Largest value since {@link sinceMs}. All values since then were smaller than `value`. After {@link HOLD_MS}, this value replaces
   * `value`.
   */
  largest: number
  sinceMs: number
}

export class Hysteresis {
  readonly #held = new Map<string, Held>()

  /**
   * Adds a value, and returns the value to report. A larger value is reported at once. A smaller value is reported only after {@link HOLD_MS} in
   * which every value was smaller.
   */
  add(key: string, value: number, nowMs = Date.now()): number {
    const held = this.#held.get(key)
    if (!held || value >= held.value) {
      if (this.#held.size >= KEYS_MAX) this.#held.clear()
      this.#held.set(key, { value, largest: 0, sinceMs: nowMs })
      return value
    }
    held.largest = Math.max(held.largest, value)
    if (nowMs - held.sinceMs < HOLD_MS) return held.value
    Object.assign(held, { value: held.largest, largest: 0, sinceMs: nowMs })
    return held.value
  }
}
