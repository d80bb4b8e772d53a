import type { Config } from '#shared/config/config.ts'
import type { FleetCounts } from '#shared/limits/fleet-counts.ts'

/**
 * Returns a function that opens the shared counts of the fleet. Without a database there is only one ingress, so that function returns undefined.
 * Outages are not logged here: the ingress logs them.
 */
export async function fleetCountsOpener({ databaseUrl }: Config): Promise<() => FleetCounts | undefined> {
  if (databaseUrl === undefined) return () => undefined
  // Load the client library only if it is used.
  const { openPostgresCounts } = await import('#shared/limits/postgres.ts')
  return () => openPostgresCounts(databaseUrl, () => undefined)
}
