import type { QueuedOf } from '#shared/store/store.ts'
import {
  EXACT_PLACES,
  PLACES_MAX,
  PLACES_STEP,
  type QueuedPlace,
  type TenantDepth,
  type TenantReads,
} from '#shared/store/tenants.ts'
import type { SqlDatabase } from './sql.ts'
import type { Statement } from './statements.ts'

const OF = `state = 'queued' AND pool = :pool AND kind = :kind AND model = :model AND priority = :priority`

/** Counts the jobs that have not ended, by whose they are. */
export const TENANT_DEPTH: Statement = {
  name: 'tenant_depth',
  sql: 'SELECT tenant, state, count(*) AS count FROM jobs WHERE purge_at_ms IS NULL GROUP BY tenant, state',
}

/** Counts the jobs that wait for the same slots, by whose they are. */
export const QUEUED_TENANTS: Statement = {
  name: 'queued_tenants',
  sql: `SELECT tenant, count(*) AS count FROM jobs WHERE ${OF} GROUP BY tenant`,
}

/** Where the jobs of one tenant stand among their own. */
export const QUEUED_PLACES: Statement = {
  name: 'queued_places',
  sql: `SELECT id, nth FROM (
          SELECT id, row_number() OVER (ORDER BY id) AS nth FROM (
            SELECT id FROM jobs WHERE ${OF} AND tenant = :tenant ORDER BY id LIMIT ${PLACES_MAX}) AS oldest) AS placed
        WHERE nth <= ${EXACT_PLACES} OR nth % ${PLACES_STEP} = 0 ORDER BY nth`,
}

/** The reads of {@link TenantReads} over a database. */
export function tenantReads(db: SqlDatabase): TenantReads {
  return {
    depth: async () => (await db.run(TENANT_DEPTH, {})).map((row) => ({ ...row }) as unknown as TenantDepth),
    queued: async (of) =>
      (await db.run(QUEUED_TENANTS, paramsOf(of))).map(({ tenant, count }) => ({
        tenant: String(tenant),
        count: Number(count),
      })),
    places: async (of, tenant) =>
      (await db.run(QUEUED_PLACES, { ...paramsOf(of), tenant })).map(
        ({ id, nth }): QueuedPlace => ({ id: String(id), nth: Number(nth) }),
      ),
  }
}

function paramsOf({ pool, kind, model, priority }: QueuedOf) {
  return { pool, kind, model, priority }
}
