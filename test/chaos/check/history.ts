import { createReadStream, createWriteStream, type WriteStream } from 'node:fs'
import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

/** End of a job as one observer received it: a client that follows the job, a client that polls, or the store. */
export interface End {
  readonly status: string
  readonly attempt: number
  /** Hash of the received result; null if the job has no result. */
  readonly hash: string | null
}

/** Expected outcome of a job, for the checker. */
export interface Expectation {
  readonly stream: boolean
  readonly text: string
  /** True if the client cancels the job at some time. */
  readonly is_cancelled: boolean
  /** Scheduled start in unix milliseconds: the job must not start earlier. */
  readonly run_at_wall_ms?: number
  /** For a research: the outcome of a run of the same question without faults. */
  readonly research?: {
    /** Unique word in the question. Except for this word, the questions of all researches are equal. */
    readonly tag: string
    /** Hash of the report with its citations. */
    readonly report: string
    readonly children: number
    /** Kinds of the steps, sorted. */
    readonly steps: readonly string[]
  }
}

/** Columns of the row of a composed job or of a child job. */
export interface FamilyRow {
  /** Id of the parent; null if the job is no child. */
  readonly parent_id: string | null
  /** Number of children in the row of the parent. The checker compares it with the number of stored child jobs. */
  readonly children: number
  readonly steps: number
  /** Kinds of the stored steps, sorted. */
  readonly kept_steps: readonly string[]
  /** Hash of the request. The checker requires that the requests of a parent's children differ: equal ones mean that a child was submitted twice. */
  readonly request: string
  /** Hash of the report; null without one. */
  readonly report: string | null
  /** True if the parent and the children of the job were notified of its end. */
  readonly is_settled: boolean
}

/**
 * One action or observation in the history of a run, such as a request of a client or a fault.
 *
 * The phase states the result of an action. `ok`: it happened. `fail`: it certainly did not happen. `unknown`: it may have happened, for example
 * after a cut connection or a 5xx response.
 */
export type Entry =
  | { type: 'begin'; seed: number; wall_ms: number }
  | {
      type: 'submit'
      phase: 'invoke' | 'ok' | 'fail' | 'unknown'
      key: string
      ingress: string
      job_id?: string
      status?: number
      problem?: string
      expect?: Expectation
    }
  | {
      type: 'cancel'
      phase: 'invoke' | 'ok' | 'fail' | 'unknown'
      job_id: string
      ingress: string
      status?: number
      problem?: string
      state?: string
    }
  | { type: 'read'; job_id: string; ingress: string; end: End }
  | {
      type: 'follow'
      phase: 'open' | 'connected' | 'cut' | 'missing' | 'end'
      job_id: string
      follower: string
      ingress: string
      after: number
      problem?: string
    }
  | {
      type: 'frame'
      job_id: string
      follower: string
      ingress: string
      seq: number
      event: string
      text?: string
      reset?: boolean
      end?: End
    }
  | { type: 'run'; phase: 'start' | 'done' | 'failed' | 'aborted'; job_id: string; attempt: number }
  /** A request of a research for a search or a page. `aborted`: the research closed the connection before the response. */
  | { type: 'outside'; phase: 'answered' | 'aborted'; tag: string; what: string; wall_ms: number }
  | { type: 'fault'; phase: 'begin' | 'end' | 'problem'; kind: string; target: string; problem?: string }
  /** A process exited although no fault hit it. */
  | { type: 'exit'; target: string; code: string }
  | {
      type: 'row'
      job_id: string
      key: string
      pool: string
      state: string
      attempt: number
      tries: number
      crashes: number
      last_seq: number
      is_cancel_requested: boolean
      started_at_wall_ms: number | null
      created_at_wall_ms: number
      finished_at_wall_ms: number | null
      error: string | null
      text: string | null
      family?: FamilyRow
    }
  | {
      type: 'event'
      job_id: string
      seq: number
      attempt: number
      event: string
      text?: string
      reset?: boolean
      reason?: string
      wall_ms: number
    }

/** A recorded entry, with its time and the name of the client or process that recorded it. */
export type Recorded = Entry & {
  /** Milliseconds since the start of the run, of a monotonic clock. */
  readonly at_ms: number
  readonly actor: string
}

export type Of<T extends Entry['type']> = Extract<Entry, { type: T }> & Omit<Recorded, keyof Entry>

/** One job with all entries of the run that concern it. */
export interface JobHistory {
  readonly id: string
  readonly key: string | undefined
  readonly expect: Expectation | undefined
  /** In order of time. */
  readonly entries: readonly Recorded[]
  /** The job's row at the end of the run. A corrupt store may contain more than one; then the first is used. */
  readonly row: Of<'row'> | undefined
  /** Stored events, in order of their numbers. */
  readonly events: readonly Of<'event'>[]
  /** The children and the parent of the job, as stored in the database. */
  readonly children: readonly JobHistory[]
  readonly parent: JobHistory | undefined
}

/** Writes a history: one append-only file of JSON lines per actor. */
export class History {
  readonly directory: string
  readonly #files = new Map<string, WriteStream>()
  readonly #startedAt = performance.now()

  private constructor(directory: string) {
    this.directory = directory
  }

  static async open(directory: string, seed: number): Promise<History> {
    await mkdir(directory, { recursive: true })
    const history = new History(directory)
    history.add('run', { type: 'begin', seed, wall_ms: Date.now() })
    return history
  }

  get nowMs(): number {
    return performance.now() - this.#startedAt
  }

  /** Appends to the file of `actor`, in call order. */
  add(actor: string, entry: Entry): void {
    const recorded: Recorded = { at_ms: Math.round(this.nowMs * 10) / 10, actor, ...entry }
    this.#fileOf(actor).write(`${JSON.stringify(recorded)}\n`)
  }

  async close(): Promise<void> {
    const closed = [...this.#files.values()].map((file) => new Promise<void>((resolve) => file.end(resolve)))
    await Promise.all(closed)
  }

  #fileOf(actor: string): WriteStream {
    const known = this.#files.get(actor)
    if (known) return known
    const file = createWriteStream(join(this.directory, `${actor}.ndjson`), { flags: 'a' })
    this.#files.set(actor, file)
    return file
  }
}

/** Reads all files of a history, and returns their entries in order of time. Entries of one file keep their order. */
export async function readHistory(directory: string): Promise<Recorded[]> {
  const records: Recorded[] = []
  for (const name of (await readdir(directory)).toSorted()) {
    if (!name.endsWith('.ndjson')) continue
    const lines = createInterface({
      input: createReadStream(join(directory, name)),
      crlfDelay: Number.POSITIVE_INFINITY,
    })
    for await (const line of lines) records.push(JSON.parse(line))
  }
  return records.sort((a, b) => a.at_ms - b.at_ms)
}
