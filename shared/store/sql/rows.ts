import type { DurableEvent, DurableJob, DurableState, WebhookDelivery } from '#schemas/durable-job.ts'
import { ErrorBody } from '#schemas/error.ts'
import { parseSoon } from '#shared/json/read.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { OwnedJob } from '#shared/store/jobs.ts'
import type { ChildrenOfState, Depth, QueuedOf } from '#shared/store/store.ts'
import type { Row, TransitionRow, WrittenOutput } from './sql.ts'
import { JOB_COLUMNS } from './statements.ts'

const NAMES = JOB_COLUMNS.split(',').map((name) => name.trim())
const JSON_COLUMNS = new Set(['progress', 'error', 'usage', 'metadata', 'webhook_events'])
const BOOLEAN_COLUMNS = new Set(['stream', 'has_output'])

export function jobOf(row: Row): DurableJob {
  const job: Row = {}
  for (const name of NAMES) {
    const value = row[name]
    if (JSON_COLUMNS.has(name)) job[name] = jsonOf(value)
    else job[name] = BOOLEAN_COLUMNS.has(name) ? Boolean(value) : value
  }
  // A newer version may have recorded an error code that is unknown here. The tolerant schema reads such a code as internal_error.
  if (job.error !== null) job.error = tolerant(ErrorBody).parse(job.error)
  return job as DurableJob
}

export function eventOf({ job_id, seq, attempt, type, data, at_ms }: Row): DurableEvent {
  return { job_id, seq, attempt, type, data: jsonOf(data), at_ms } as DurableEvent
}

export type EventRow = Omit<DurableEvent, 'data'> & { data: string | null; chunk: number | null }

/**
 * Returns the events of a transition: first the output of the attempt, then the event of the transition itself. The numbers end with `last_seq` of
 * the row, which counts these events already.
 */
export function eventRows(row: TransitionRow, output: WrittenOutput, isOwners: boolean): EventRow[] {
  const own = row.event_type === null ? [] : [{ type: row.event_type, data: row.event_data }]
  const written = [...output, ...own]
  const first = Number(row.last_seq) - written.length + 1
  const chunk = isOwners ? Number(row.chunk) - 1 : null
  return written.map(({ type, data }, index) => ({
    job_id: String(row.id),
    seq: first + index,
    attempt: Number(row.attempt),
    type: type as DurableEvent['type'],
    data,
    at_ms: Number(row.event_at_ms),
    chunk,
  }))
}

/** Converts rows to events. Parsing yields to the event loop if the data is large. */
export async function eventsOf(rows: readonly Row[]): Promise<DurableEvent[]> {
  const events: DurableEvent[] = []
  for (const row of rows) {
    const data = jsonSoon(row.data)
    events.push({
      ...eventOf({ ...row, data: null }),
      data: data instanceof Promise ? await data : data,
    } as DurableEvent)
  }
  return events
}

export function deliveryOf(row: Row): WebhookDelivery {
  return { ...row, data: jsonOf(row.data), history: jsonOf(row.history) ?? [] } as WebhookDelivery
}

export function childrenOfStateOf(row: Row): ChildrenOfState {
  return {
    parent: String(row.parent_id),
    state: row.state as DurableState,
    count: Number(row.count),
    recent: Number(row.recent),
    recentRunMs: Number(row.recent_run_ms),
    recentFromMs: Number(row.recent_from_ms),
  }
}

export function depthOf(row: Row): Depth {
  return { ...row } as unknown as Depth
}

export function queuedModelOf(row: Row): QueuedOf & { count: number } {
  return { ...row } as unknown as QueuedOf & { count: number }
}

export function jsonOf(value: unknown): unknown {
  return typeof value === 'string' ? JSON.parse(value) : null
}

/** Like {@link jsonOf}, but parses large texts with event-loop yields, and then returns a promise. */
export function jsonSoon(value: unknown): unknown {
  return typeof value === 'string' ? parseSoon(value) : null
}

export function jsonText(value: unknown): string | null {
  return value === undefined || value === null ? null : JSON.stringify(value)
}

export function ownedOf(row: Row): OwnedJob {
  return {
    id: String(row.id),
    attempt: Number(row.attempt),
    isCancelRequested: Boolean(row.is_cancel_due),
    isToWrapUp: Boolean(row.is_cancelled) && !row.is_cancel_due,
  }
}
