import { createReadStream, createWriteStream, type WriteStream } from 'node:fs'
import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

/** How a job ended, as one observer saw it. */
export interface End {
  readonly status: string
  readonly attempt: number
  /** Of the result, of whoever is asked; null where there is none. */
  readonly hash: string | null
}

/** What the client wanted of a job, so that the checker knows what to expect. */
export interface Expectation {
  readonly stream: boolean
  /** The whole answer. */
  readonly text: string
  /** The client is going to ask for a cancel. */
  readonly is_cancelled: boolean
  /** Unix milliseconds before which it must not start. */
  readonly run_at_wall_ms?: number
  /** Of a research: what the same question came to when nothing happened. */
  readonly research?: {
    /** The word of its question that tells it from others. */
    readonly tag: string
    /** Hash of the report with all that it cites. */
    readonly report: string
    readonly children: number
    /** Kinds of its steps, sorted. */
    readonly steps: readonly string[]
  }
}

/** What the store knows of a job that is composed, or a child. */
export interface FamilyRow {
  /** Of a child. */
  readonly parent_id: string | null
  /** As the row counts them. */
  readonly children: number
  readonly steps: number
  /** Kinds of the steps that are kept, sorted. */
  readonly kept_steps: readonly string[]
  /** Hash of what it is asked to do. */
  readonly request: string
  /** Hash of its report; null where it has none. */
  readonly report: string | null
  /** Its parent and its children were told of its end. */
  readonly is_settled: boolean
}

/**
 * One thing that one actor saw or did. `ok`: it happened; `fail`: it certainly did not; `unknown`: nobody can tell, as
 * after a cut connection or an answer of 5xx.
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
  /** A search or a page that a research asked for, outside; aborted: the answer came too late for whoever asked. */
  | { type: 'outside'; phase: 'answered' | 'aborted'; tag: string; what: string; wall_ms: number }
  | { type: 'fault'; phase: 'begin' | 'end' | 'problem'; kind: string; target: string; problem?: string }
  /** A process ended though nothing was done to it. */
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

/** An entry with its time and its author. */
export type Recorded = Entry & {
  /** Milliseconds since the run began, of a clock that never goes back. */
  readonly at_ms: number
  readonly actor: string
}

/** The entries of one type. */
export type Of<T extends Entry['type']> = Extract<Entry, { type: T }> & Omit<Recorded, keyof Entry>

/** Everything that one run knows about one job. */
export interface JobHistory {
  readonly id: string
  readonly key: string | undefined
  readonly expect: Expectation | undefined
  /** All of it, in the order of time. */
  readonly entries: readonly Recorded[]
  /** Its row at the end; more than one only if the store broke. */
  readonly row: Of<'row'> | undefined
  /** Its stored events, by number. */
  readonly events: readonly Of<'event'>[]
  /** What the store says was submitted by it, and by whom it was submitted. */
  readonly children: readonly JobHistory[]
  readonly parent: JobHistory | undefined
}

/** Writes down what happens: one append-only file of JSON lines an actor. */
export class History {
  readonly directory: string
  readonly #files = new Map<string, WriteStream>()
  readonly #startedAt = performance.now()

  private constructor(directory: string) {
    this.directory = directory
  }

  /** Starts a history in a directory, which is made. */
  static async open(directory: string, seed: number): Promise<History> {
    await mkdir(directory, { recursive: true })
    const history = new History(directory)
    history.add('run', { type: 'begin', seed, wall_ms: Date.now() })
    return history
  }

  /** Milliseconds since the run began. */
  get nowMs(): number {
    return performance.now() - this.#startedAt
  }

  /** Appends to the file of `actor`. Order within it is the order of calls. */
  add(actor: string, entry: Entry): void {
    const recorded: Recorded = { at_ms: Math.round(this.nowMs * 10) / 10, actor, ...entry }
    this.#fileOf(actor).write(`${JSON.stringify(recorded)}\n`)
  }

  /** Waits until all is on disk. */
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

/** All entries of a directory in the order of their times; those of one actor keep theirs. */
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
