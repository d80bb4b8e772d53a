import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { Created, Dispatch, Store, TransitionResult } from '#shared/store/store.ts'

/** One line of the history. If there is no job id, then the line concerns all jobs. */
interface Line {
  readonly atMs: number
  readonly jobId: string | undefined
  readonly what: () => string
}

/** Records what happens in a simulation, and the violations of invariants. */
export class History {
  readonly violations: { jobId: string | undefined; text: string }[] = []
  /** Every job, in the state after its last transition. */
  readonly jobs = new Map<string, DurableJob>()
  /** Number of started worker processes. */
  workers = 0
  readonly #lines: Line[] = []
  readonly #retries: string[] = []
  readonly #nowMs: () => number

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs
  }

  /**
   * Adds a line to the history.
   * @param what Returns the text of the line. Called only if the history is printed, which is rare
   */
  note(jobId: string | undefined, what: () => string): void {
    this.#lines.push({ atMs: this.#nowMs(), jobId, what })
  }

  violated(jobId: string | undefined, text: string): void {
    this.violations.push({ jobId, text })
    this.note(jobId, () => `VIOLATED: ${text}`)
  }

  /** Whether every job has ended. */
  get isOver(): boolean {
    return [...this.jobs.values()].every(({ state }) => TERMINAL.has(state))
  }

  /** Formats the lines of one job, and those that concern all jobs, as a table. */
  timeline(jobId: string | undefined): string {
    return tableOf(this.#lines.filter((line) => line.jobId === undefined || line.jobId === jobId))
  }

  /** Formats all lines as a table. */
  story(): string {
    return tableOf(this.#lines)
  }

  /** Counts the jobs by final state, and the retries by reason. */
  counts(): Record<string, number> {
    const counts: Record<string, number> = {}
    const all = [...[...this.jobs.values()].map(({ state }) => state), ...this.#retries]
    for (const what of all) counts[what] = (counts[what] ?? 0) + 1
    return counts
  }

  /** Returns the id of the job with the fewest lines among the jobs that violated an invariant, because this job is the easiest to understand. */
  smallestViolating(): string | undefined {
    const ids = new Set(this.violations.flatMap(({ jobId }) => jobId ?? []))
    const counts = new Map([...ids].map((id) => [id, 0]))
    for (const { jobId } of this.#lines) {
      const count = jobId === undefined ? undefined : counts.get(jobId)
      if (jobId !== undefined && count !== undefined) counts.set(jobId, count + 1)
    }
    return [...counts].sort(([, a], [, b]) => a - b)[0]?.[0]
  }

  /** Records a state transition. Invariant I2: a job in a final state must never change. */
  sawMove(name: string, { job, events }: TransitionResult): void {
    const before = this.jobs.get(job.id)
    if (before && TERMINAL.has(before.state) && endOf(before) !== endOf(job)) {
      this.violated(job.id, `I2: ${name} changed an ended job from ${endOf(before)} to ${endOf(job)}`)
    }
    if (!before || before.last_seq <= job.last_seq) this.jobs.set(job.id, job)
    for (const { type, data } of events)
      if (type === 'job.retrying') this.#retries.push((data as { reason: string }).reason)
    this.note(job.id, () => `${name.padEnd(12)} ${job.state} attempt ${job.attempt} ${events.map(shortOf).join(' ')}`)
  }
}

/** Maximum characters of output in a timeline. */
const WORDS_MAX = 60

/** Formats an event for the history. */
export function shortOf({ seq, type, data }: DurableEvent): string {
  const { reason, chunk } = (data ?? {}) as { reason?: string; chunk?: { text: string } }
  const more = reason ?? chunk?.text.trim().slice(0, WORDS_MAX)
  return `${seq}:${type.slice('job.'.length)}${more === undefined ? '' : `(${more})`}`
}

function tableOf(lines: readonly Line[]): string {
  return lines.map(({ atMs, what }) => `${(atMs / 1_000).toFixed(3).padStart(9)}  ${what()}`).join('\n')
}

function endOf({ state, attempt, last_seq, finished_at_ms }: DurableJob): string {
  return `${state} attempt ${attempt} seq ${last_seq} at ${finished_at_ms}`
}

type Call = (...args: unknown[]) => Promise<Created | TransitionResult | Dispatch[] | undefined>

const MOVES = ['append', 'claim', 'complete', 'fail', 'retry', 'handBack', 'honourCancel', 'cancel', 'create'] as const
const FAMILY_MOVES = ['addStep', 'submitChild', 'park', 'wake', 'cancelChildren', 'wakeDue', 'timeOutWaiting'] as const
const SWEEPS = ['claimNext', 'startDue', 'takeUnpublished', 'expire', 'reap'] as const
const WATCHED: ReadonlySet<string> = new Set<keyof Store>([...MOVES, ...FAMILY_MOVES, ...SWEEPS])

/**
 * Wraps a store, so that every state transition is recorded in the history.
 * @param sawClaims Called with all claims of one call, before the history records them
 */
export function watchedStore(
  store: Store,
  history: History,
  sawClaims: (claims: readonly TransitionResult[]) => void,
): Store {
  return new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (typeof value !== 'function') return value
      if (typeof name !== 'string' || !WATCHED.has(name)) return value.bind(target)
      return async (...args: unknown[]) => {
        const answer = await (value as Call).apply(target, args)
        const moves = movesOf(answer)
        if (name === 'claim' || name === 'claimNext') sawClaims(moves)
        for (const moved of moves) history.sawMove(name, moved)
        return answer
      }
    },
  })
}

function movesOf(answer: Created | TransitionResult | Dispatch[] | undefined): TransitionResult[] {
  if (answer === undefined) return []
  if (Array.isArray(answer)) return answer
  return 'events' in answer ? [answer] : []
}
