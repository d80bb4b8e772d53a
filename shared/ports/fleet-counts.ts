import type { FleetCounts } from '#shared/capacity/fleet-counts.ts'
import type { Config } from '#shared/config/config.ts'

/**
 * Returns a function that opens the counts that all ingresses share. Without a database there is only one ingress, so
 * that function then returns undefined. The ingress reports outages of the counts, so no outage is logged here.
 */
export async function fleetCountsOpener({ databaseUrl }: Config): Promise<() => FleetCounts | undefined> {
  if (databaseUrl === undefined) return () => undefined
  const { openPostgresCounts } = await import('#shared/store/postgres/fleet-counts.ts')
  return () => openPostgresCounts(databaseUrl, () => undefined)
}
