import { jobOf } from '#shared/store/sql/rows.ts'
import type { Params, Row, SqlDatabase } from '#shared/store/sql/sql.ts'
import { FIND, FIND_KEY, type Statement } from '#shared/store/sql/statements.ts'
import { movedOf } from '#shared/store/sql/writes.ts'
import type { Created, IdempotencyKey, NewJob } from '#shared/store/store.ts'
import { CREATE } from './inserts.ts'
import { keyParams, newJobParams } from './params.ts'

/** Accepts a job, or finds the accepted one (see `JobMoves.create`). */
export async function createJob(db: SqlDatabase, job: NewJob, key: IdempotencyKey | undefined): Promise<Created> {
  const params = { ...newJobParams(job), ...keyParams(key) }
  const [row] = await db.insert(CREATE, params, key !== undefined)
  if (row) return { outcome: 'created', ...movedOf(row) }
  return await findCreated(db, job, params, key)
}

const FIND_HELD: Statement = {
  name: 'find_held_key',
  sql: `${FIND_KEY.sql} AND expires_at_ms > now_ms()`,
}

/** The job that an equal call created with an unexpired key (see `JobReads.findMade`). */
export async function findMade(db: SqlDatabase, tenant: string, key: IdempotencyKey): Promise<Created | undefined> {
  const [held] = await db.run(FIND_HELD, { tenant, key_scope: key.scope, key: key.key })
  return held && (await heldJob(db, tenant, held, key))
}

/** The reason why a job was not inserted: its id or its key is taken. */
async function findCreated(
  db: SqlDatabase,
  job: NewJob,
  params: Params,
  key: IdempotencyKey | undefined,
): Promise<Created> {
  const [held] = key ? await db.run(FIND_KEY, params) : []
  return await heldJob(db, job.tenant, held ?? { job_id: job.id, fingerprint: key?.fingerprint }, key)
}

async function heldJob(db: SqlDatabase, tenant: string, held: Row, key: IdempotencyKey | undefined): Promise<Created> {
  const jobId = String(held.job_id)
  if (held.fingerprint !== key?.fingerprint) return { outcome: 'conflict', jobId }
  const [found] = await db.run(FIND, { id: jobId, tenant })
  // The job was purged before its key, which happens only if its retention is shorter.
  return found ? { outcome: 'exists', job: jobOf(found) } : { outcome: 'conflict', jobId }
}
