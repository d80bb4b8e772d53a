import { jobOf } from '#shared/store/sql/rows.ts'
import type { Params, SqlDatabase } from '#shared/store/sql/sql.ts'
import { FIND, FIND_KEY } from '#shared/store/sql/statements.ts'
import { movedOf } from '#shared/store/sql/writes.ts'
import type { Created, IdempotencyKey, NewJob } from '#shared/store/store.ts'
import { CREATE } from './inserts.ts'
import { keyParams, newJobParams } from './params.ts'

/** Accepts a job, or finds the one that was accepted before (see `JobMoves.create`). */
export async function createJob(db: SqlDatabase, job: NewJob, key: IdempotencyKey | undefined): Promise<Created> {
  const params = { ...newJobParams(job), ...keyParams(key) }
  const [row] = await db.insert(CREATE, params, key !== undefined)
  if (row) return { outcome: 'created', ...movedOf(row) }
  return await findCreated(db, job, params, key)
}

/** Why a job was not inserted: its id or its key is taken. */
async function findCreated(
  db: SqlDatabase,
  job: NewJob,
  params: Params,
  key: IdempotencyKey | undefined,
): Promise<Created> {
  const [held] = key ? await db.run(FIND_KEY, params) : []
  const jobId = held ? String(held.job_id) : job.id
  if (held && held.fingerprint !== key?.fingerprint) return { outcome: 'conflict', jobId }
  const [found] = await db.run(FIND, { id: jobId, tenant: job.tenant })
  // Purged before its key: only where a job is kept for less time than its key.
  return found ? { outcome: 'exists', job: jobOf(found) } : { outcome: 'conflict', jobId }
}
