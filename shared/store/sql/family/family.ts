import type { DoneStep, NewChild, NewStep, RecordedStep, StepInput, StepOutput } from '#shared/store/family.ts'
import { eventsOf, jobOf, jsonOf } from '#shared/store/sql/rows.ts'
import type { Params, Row, SqlDatabase } from '#shared/store/sql/sql.ts'
import { FIND, FIND_CHUNK, FIND_STEP } from '#shared/store/sql/statements.ts'
import { writeAsOwner } from '#shared/store/sql/writes.ts'
import type { HeldAttempt, Output, TransitionResult } from '#shared/store/store.ts'
import { STEP, SUBMIT } from './transitions.ts'

/** See {@link FamilyTransitions.addStep}. A step with the same attempt and number is a repetition of this write. */
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

/** See {@link FamilyTransitions.submitChild}. If the child exists, then an earlier attempt of this write created it. */
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
    child_request: request,
    child_request_bytes: Buffer.byteLength(request) + (child.blobBytes ?? 0),
    child_deadline_in_ms: child.deadlineInMs === undefined ? null : Math.ceil(child.deadlineInMs),
    child_reserved_nanos: child.reservedNanos ? Math.ceil(child.reservedNanos) : null,
  }
  const moved = await writeAsOwner(db, SUBMIT, run, params)
  if (moved) return moved
  const [there] = await db.run(FIND, { id: child.id, tenant: null })
  return there?.parent_id === run.id ? await parentOf(db, run, []) : undefined
}

/** The job of an attempt whose write was committed earlier; undefined if another attempt owns the job now. */
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
