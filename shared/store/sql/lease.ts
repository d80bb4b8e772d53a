import type { OwnedJob, ProcessLease } from '#shared/store/leases.ts'
import { ownedOf } from './rows.ts'
import type { SqlDatabase } from './sql.ts'
import { OWNED, RENEW, SPARE } from './statements.ts'

/** Renews the lease of a process and takes back its counted crashes. Returns the jobs that it owns. */
export async function renew(db: SqlDatabase, process: ProcessLease): Promise<OwnedJob[]> {
  const { boot, role, slots, version, draining, leaseMs } = process
  await db.run(RENEW, { boot, role, slots, version, draining, lease_ms: leaseMs })
  await db.run(SPARE, { boot })
  return (await db.run(OWNED, { boot })).map(ownedOf)
}
