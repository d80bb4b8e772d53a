import type { FleetCounts } from '#shared/capacity/fleet-counts.ts'
import type { Config } from '#shared/config/config.ts'

/**
 * Returns a function that opens the shared counts of the fleet. Without a database there is only one ingress, so that function returns undefined.
 * Outages are not logged here: the ingress logs them.
 */
export async function fleetCountsOpener({ databaseUrl }: Config): Promise<() => FleetCounts | undefined> {
  if (databaseUrl === undefined) return () => undefined
  // Load the client library only if it is used.
  const { openPostgresCounts } = await import('#shared/store/postgres/fleet-counts.ts')
  return () => openPostgresCounts(databaseUrl, () => undefined)
}
