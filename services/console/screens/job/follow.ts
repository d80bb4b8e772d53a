import { signal } from '@preact/signals'
import {
  ApiFailure,
  eventsOf,
  fetchApi,
  fetchJson,
  isOperator,
  type Job,
  type OperatorJob,
  type Page,
  type Worker,
} from '#services/console/api/client.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'
import { durationText } from '#shared/lib/duration.ts'

const RETRY_DELAY_MS = 1_500
const SHOW_DELAY_MS = 100

/**
 * One line of the timeline. Progress events share one line until an event of another type occurs, and so do output events. Any other event
 * has a line of its own.
 */
export interface Line {
  readonly type: string
  readonly at: number
  /** Number of the attempt that the event started or ended. */
  readonly attempt?: number | undefined
  /** Error code of a failed attempt. */
  readonly code?: string | undefined
  readonly note: string
  /** Notes of the newest events of this line, without consecutive repetitions. */
  readonly notes: readonly string[]
  readonly times: number
}

/**
 * Follows a job over its event stream until it finishes, and reconnects after failures with `last-event-id`.
 *
 * A job of another project has no event stream for this key. Operators then see `operatorJob`, which has no input or output.
 */
export class FollowedJob {
  readonly job = signal<Job | undefined>(undefined)
  readonly operatorJob = signal<OperatorJob | undefined>(undefined)
  /** Process that runs the job. Only operators can read it. */
  readonly worker = signal<Worker | undefined>(undefined)
  readonly lines = signal<readonly Line[]>([])
  readonly output = signal('')
  /** Error of the last read. */
  readonly error = signal<unknown>(undefined)
  readonly #id: string
  #last = 0
  #output = ''
  #lines: readonly Line[] = []
  #isDue = false

  constructor(id: string) {
    this.#id = id
  }

  get isKnown(): boolean {
    return (this.job.peek() ?? this.operatorJob.peek()) !== undefined
  }

  async follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.refresh(signal)
        if (this.job.value) await this.#read(signal)
        this.error.value = undefined
        const status = (this.job.value ?? this.operatorJob.value)?.status ?? ''
        if (isEnded(status)) return
      } catch (error) {
        if (signal.aborted) return
        this.error.value = error
        if (error instanceof ApiFailure && error.status === 404) return
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_DELAY_MS))
    }
  }

  async refresh(signal?: AbortSignal): Promise<void> {
    const options = signal ? { signal } : {}
    const own = await fetchJson<Job>(`/v1/jobs/${this.#id}`, options).catch((error: unknown) => {
      const isForeign = error instanceof ApiFailure && [403, 404].includes(error.status)
      if (isForeign && isOperator.value !== false) return undefined
      throw error
    })
    // The response is ignored if the final event has arrived in the meantime, because a finished job does not change.
    if (isEnded(this.job.value?.status ?? '')) return
    this.job.value = own
    if (isOperator.value || !own) {
      this.operatorJob.value = await fetchJson<OperatorJob>(`/v1/admin/jobs/${this.#id}`, options).catch(
        (error: unknown) => {
          if (own) return undefined
          throw error
        },
      )
    }
    const { worker, status } = this.operatorJob.value ?? {}
    if (worker && status === 'in_progress') {
      // Without the list of workers, only the heartbeat is missing, so a failed read does not stop the events.
      const page = await fetchJson<Page<Worker>>('/v1/admin/workers', options).catch(() => undefined)
      if (page) this.worker.value = page.data.find((one) => one.id === worker)
    }
  }

  async #read(signal: AbortSignal): Promise<void> {
    const headers = { 'last-event-id': String(this.#last) }
    const response = await fetchApi(`/v1/jobs/${this.#id}/events`, { signal, headers })
    if (response.status === 204) return
    for await (const event of eventsOf(response)) this.#apply(event)
  }

  #apply(event: Record<string, unknown>): void {
    const { type, sequence_number: seq, job, created_at: at } = event as Record<string, never> & { job?: Job }
    if (typeof seq === 'number') this.#last = seq
    if ((event as { output_reset?: boolean }).output_reset) this.#output = ''
    if (type === 'job.output.delta') this.#output += textOfChunk((event as { chunk?: unknown }).chunk)
    const { attempt, reason } = event as { attempt?: number; reason?: string }
    this.#add({ type: String(type), at: Number(at), attempt, code: reason }, noteOf(event))
    if (job) {
      this.#show()
      this.job.value = job
    } else this.#showSoon()
    if (type === 'job.started' || type === 'job.retrying') void this.refresh().catch(() => {})
  }

  /** Shows the events of a short time together. A long job sends thousands of events at once, and a rendering per event would block the page. */
  #showSoon(): void {
    if (this.#isDue) return
    this.#isDue = true
    setTimeout(() => this.#show(), SHOW_DELAY_MS)
  }

  #show(): void {
    this.#isDue = false
    this.output.value = this.#output
    this.lines.value = this.#lines
  }

  /** Adds an event to the timeline. A progress or output event is added to an existing line, see {@link Line}. */
  #add(event: Pick<Line, 'type' | 'at' | 'attempt' | 'code'>, note: string): void {
    const { type } = event
    const lines = this.#lines
    const first = lines.findLastIndex((line) => !REPEATED.has(line.type)) + 1
    const same = REPEATED.has(type) ? lines.findIndex((line, nth) => nth >= first && line.type === type) : -1
    if (same < 0) this.#lines = [...lines, { ...event, note, notes: [note], times: 1 }]
    else this.#lines = lines.map((line, nth) => (nth === same ? withNote(line, note) : line))
  }
}

/** Reason of an attempt that a draining worker returned to the queue. Such an attempt has not failed. */
export const HANDED_BACK = 'handed_back'

const REPEATED: ReadonlySet<string> = new Set(['job.output.delta', 'job.progress'])

const NOTES_MAX = 200

function withNote({ notes, times, ...line }: Line, note: string): Line {
  const isNew = note !== '' && note !== notes.at(-1)
  return { ...line, note, notes: isNew ? [...notes, note].slice(-NOTES_MAX) : notes, times: times + 1 }
}

function noteOf(event: Record<string, unknown>): string {
  const { reason, message, delay_ms, progress, job, partial } = event as {
    reason?: string
    message?: string
    delay_ms?: number
    progress?: { message?: string }
    job?: Job
    partial?: boolean
  }
  if (job?.error) return job.error.message
  if (reason !== undefined) {
    const text = message ?? (reason === HANDED_BACK ? 'The worker drains.' : '')
    return [text, delay_ms && `Retry in ${durationText(delay_ms / 1_000)}.`].filter(Boolean).join(' ')
  }
  if (partial) return 'saving partial output first'
  return progress?.message ?? ''
}

interface ResponseShape {
  readonly choices?: readonly { readonly delta?: MessageShape; readonly message?: MessageShape }[]
  readonly type?: string
  readonly delta?: string | { readonly text?: string; readonly thinking?: string }
  readonly content?: readonly { readonly text?: string }[]
  readonly output?: readonly { readonly content?: readonly { readonly text?: string }[] }[]
  readonly text?: string
  readonly stdout?: string
  readonly stderr?: string
}
interface MessageShape {
  readonly content?: string | null
}

function textOfChunk(chunk: unknown): string {
  const value = (chunk ?? {}) as ResponseShape
  const [choice] = value.choices ?? []
  if (choice) return choice.delta?.content ?? ''
  if (typeof value.delta === 'string') return value.type?.includes('text.delta') ? value.delta : ''
  return value.delta?.text ?? ''
}

export function textOfResult(result: unknown): string | undefined {
  if (typeof result === 'string') return result
  const value = (result ?? {}) as ResponseShape
  const [choice] = value.choices ?? []
  if (choice) return choice.message?.content ?? undefined
  if (Array.isArray(value.content)) return value.content.map(({ text = '' }) => text).join('')
  if (Array.isArray(value.output)) {
    return value.output.flatMap(({ content = [] }) => content.map(({ text = '' }) => text)).join('')
  }
  if (value.stdout !== undefined) return [value.stdout, value.stderr].filter(Boolean).join('\n')
  return value.text
}
