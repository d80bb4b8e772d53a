/*
 * State transitions of composed jobs in SQL: steps, child jobs, park, wake and settle (docs/internals/design.md, Composed jobs).
 *
 * A child job has a `depth` above 0 and a `parent_id`. Steps and children are inserted together with a write of the parent's row. Only the holder of
 * the parent, the worker that claimed it, can therefore add them. If such a write is repeated after a lost response, then the existing row is
 * returned.
 */

import type { DoneStep, NewChild, NewStep, RecordedStep, StepInput, StepOutput } from '#shared/store/jobs.ts'
import type { HeldAttempt, Output, TransitionResult } from '#shared/store/store.ts'
import { writeAsOwner } from './jobs.ts'
import { eventsOf, jobOf, jsonOf } from './rows.ts'
import type { Params, Row, SqlDatabase } from './sql.ts'
import { FIND, FIND_CHUNK, FIND_STEP } from './statements.ts'
import {
  CANCEL,
  CANCEL_DUE,
  CANCEL_REQUESTED,
  END,
  endWhen,
  OWNED,
  outputReset,
  STATE,
  type Transition,
  WRITTEN,
} from './transitions.ts'

export async function addStep(
  db: SqlDatabase,
  run: HeldAttempt,
  step: NewStep,
  output: Output,
): Promise<TransitionResult | undefined> {
  const { id, attempt, boot: owner, chunk } = run
  const params: Params = {
    step_key: step.key,
    step_kind: step.kind,
    step_input: step.input ?? null,
    step_output: JSON.stringify(step.output),
    step_cost: JSON.stringify(step.cost),
  }
  const bytes = Buffer.byteLength(`${params.step_input ?? ''}${params.step_output}`) + (step.blobBytes ?? 0)
  const moved = await writeAsOwner(db, STEP, run, params, output, bytes)
  if (moved) return moved
  const [kept] = await db.run(FIND_STEP, { id, key: step.key })
  if (kept?.attempt !== attempt || kept.chunk !== chunk) return undefined
  const events = await eventsOf(await db.run(FIND_CHUNK, { id, attempt, owner, chunk }))
  return await parentOf(db, run, events)
}

export async function submitChild(
  db: SqlDatabase,
  run: HeldAttempt,
  child: NewChild,
): Promise<TransitionResult | undefined> {
  const request = JSON.stringify(child.request ?? null)
  const params: Params = {
    child_id: child.id,
    child_pool: child.pool,
    child_kind: child.kind,
    child_endpoint: child.endpoint,
    child_model: child.model,
    child_metadata: JSON.stringify(child.metadata ?? {}),
    child_traceparent: child.traceparent ?? null,
    child_request: request,
    child_input: child.input ?? null,
    child_request_bytes: Buffer.byteLength(request + (child.input ?? '')) + (child.blobBytes ?? 0),
    child_deadline_in_ms: child.deadlineInMs === undefined ? null : Math.ceil(child.deadlineInMs),
    child_reserved_nanos: child.reservedNanos ? Math.ceil(child.reservedNanos) : null,
  }
  const moved = await writeAsOwner(db, SUBMIT, run, params)
  if (moved) return moved
  const [there] = await db.run(FIND, { id: child.id, tenant: null })
  return there?.parent_id === run.id ? await parentOf(db, run, []) : undefined
}

/** Returns the job of an attempt whose write was committed earlier. Undefined if another attempt holds the job now. */
async function parentOf(
  db: SqlDatabase,
  run: HeldAttempt,
  events: TransitionResult['events'],
): Promise<TransitionResult | undefined> {
  const [row] = await db.run(FIND, { id: run.id, tenant: null })
  const isOwn = row?.attempt === run.attempt && row.owner === run.boot && Number(row.chunk) > run.chunk
  return row && isOwn ? { job: jobOf(row), events } : undefined
}

export function stepOf({ key, kind, cost, attempt, at_ms, output }: Row): DoneStep {
  const { blob = null } = (jsonOf(output) ?? {}) as { blob?: string }
  return { key, kind, cost: jsonOf(cost), attempt, at_ms, blob } as DoneStep
}

export function keptStepOf(row: Row): DoneStep & { readonly output: StepOutput } {
  return { ...stepOf(row), output: jsonOf(row.output) as StepOutput }
}

export function recordedStepOf(row: Row): RecordedStep {
  return { ...keptStepOf(row), input: jsonOf(row.input) as StepInput | null }
}

/**
 * Margin in ms for a parent that ends after its deadline. The reaper ends such a parent 10 s after the deadline, or later if its sweeps are
 * delayed. The retention of a child must nevertheless end after that of its parent, so this margin is added to the retention of the child.
 */
const GRACE_MS = 60_000

export const STEP: Transition = {
  name: 'step',
  isOwners: true,
  set: `${WRITTEN}, steps = steps + 1`,
  where: OWNED,
  also: [
    (moved) => `
      INSERT INTO job_steps (job_id, key, kind, input, output, cost, attempt, chunk, at_ms)
      SELECT moved.id, :step_key, :step_kind, :step_input, :step_output, :step_cost, moved.attempt, moved.chunk - 1, now_ms()
      FROM ${moved}`,
  ],
}

const CHILD_MS = 'now_ms() + CAST(:child_deadline_in_ms AS bigint)'
const CHILD_UNTIL = `CASE WHEN ${CHILD_MS} < moved.deadline_ms THEN ${CHILD_MS} ELSE moved.deadline_ms END`

/**
 * State transition: the holder of a job submits a child. The write fails if the job has ended or has another holder. The child's retention
 * ends after that of its parent, and the purge of the parent deletes both. The child therefore exists as long as its parent.
 */
export const SUBMIT: Transition = {
  name: 'submit',
  isOwners: true,
  set: `${WRITTEN}, children = children + 1`,
  where: OWNED,
  also: [
    (moved) => `
      INSERT INTO jobs (id, tenant, parent_id, pool, kind, endpoint, model, priority, stream, state, last_seq, run_at_ms,
        expires_at_ms, deadline_ms, published_at_ms, created_at_ms, retention_ms, metadata, webhook_events, request_id,
        traceparent, request, input, depth, key_id, reserved_nanos, request_bytes)
      SELECT :child_id, moved.tenant, moved.id, :child_pool, :child_kind, :child_endpoint, :child_model, moved.priority,
        CAST(0 = 1 AS boolean), 'queued', 1, now_ms(), ${CHILD_UNTIL}, ${CHILD_UNTIL}, now_ms(), now_ms(),
        moved.deadline_ms + ${GRACE_MS} - now_ms() + moved.retention_ms, :child_metadata, '[]', moved.request_id,
        COALESCE(CAST(:child_traceparent AS text), moved.traceparent),
        :child_request, :child_input, moved.depth + 1, (SELECT key_id FROM jobs AS parents WHERE parents.id = moved.id),
        CAST(:child_reserved_nanos AS bigint), CAST(:child_request_bytes AS bigint)
      FROM ${moved}`,
    (moved) => `
      INSERT INTO job_events (job_id, seq, attempt, type, at_ms) SELECT :child_id, 1, 0, 'job.queued', now_ms() FROM ${moved}`,
  ],
}

/**
 * SQL condition for a row `children`: the child has not ended, and the text `awaits` contains its id.
 *
 * @param parent Must be a parameter of the statement. The column `id` has another collation than `parent_id`, so with this column Postgres could not
 * use the index of children.
 */
const unended = (parent: string, awaits: string) => `
  children.parent_id = ${parent} AND children.depth > 0 AND children.purge_at_ms IS NULL
  AND ${awaits} LIKE '%' || children.id || '%'`

/**
 * State transition: the holder parks the job until children have ended. Unended children are locked, so that the transition that ends a child runs
 * after this commit and finds the parent waiting.
 */
export const PARK: Transition = {
  name: 'park',
  isOwners: true,
  reads: {
    name: 'unended',
    sql: (from) =>
      `SELECT children.id, children.parent_id FROM ${from} AS children WHERE ${unended(':id', 'CAST(:awaits AS text)')}`,
    lock: 'children',
  },
  set: `${WRITTEN}, awaits = :awaits, wake_at_ms = deadline_ms - CAST(:wrap_up_ms AS bigint), published_at_ms = now_ms(),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled'
                     WHEN ${CANCEL_REQUESTED} THEN 'queued'
                     WHEN EXISTS (SELECT 1 FROM unended WHERE unended.parent_id = jobs.id) THEN 'waiting'
                     ELSE 'queued' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.waiting' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE '{"output_reset":' || ${outputReset} || '}' END`,
}

export const WAKE: Transition = {
  name: 'wake',
  givesRequest: true,
  set: `state = 'queued', published_at_ms = now_ms()`,
  where: `id = :id AND ${STATE} = 'waiting'
          AND NOT EXISTS (SELECT 1 FROM jobs AS children WHERE ${unended(':id', 'jobs.awaits')})`,
}

/** Sweep: wakes parked jobs whose maximum wait is over, so that they can write a partial result. */
export const WAKE_DUE: Transition = {
  name: 'wake_due',
  givesRequest: true,
  set: `state = 'queued', published_at_ms = now_ms()`,
  pick: {
    from: 'jobs',
    where: `state = 'waiting' AND wake_at_ms <= now_ms() AND deadline_ms > now_ms()`,
    order: 'wake_at_ms',
    lock: 'jobs',
  },
}

export const TIME_OUT: Transition = {
  name: 'time_out',
  set: `state = 'failed', error = CAST(:timeout_error AS text), ${END}`,
  pick: {
    from: 'jobs',
    where: `state = 'waiting' AND wake_at_ms <= now_ms() AND deadline_ms <= now_ms()`,
    order: 'wake_at_ms',
    lock: 'jobs',
  },
  event: `'job.failed'`,
}

const UNCANCELLED = `parent_id = :id AND depth > 0 AND purge_at_ms IS NULL
  AND NOT (${STATE} = 'in_progress' AND ${CANCEL_REQUESTED})`

export const CANCEL_CHILDREN: Transition = {
  name: 'cancel_children',
  set: CANCEL.set,
  pick: { from: 'jobs', where: UNCANCELLED, order: 'jobs.id', lock: 'jobs' },
  event: CANCEL.event as string,
}

/**
 * Marks an ended job as settled: its parent was woken and its children were cancelled. Sweeps then skip the job. No field that callers can read
 * changes.
 */
export const SETTLE = {
  name: 'settle',
  sql: `UPDATE jobs SET is_settled = TRUE WHERE id = :id AND purge_at_ms IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM jobs AS children WHERE ${UNCANCELLED.replaceAll('jobs.', 'children.')})`,
}
