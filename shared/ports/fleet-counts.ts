import type { FleetCounts } from '#shared/capacity/fleet-counts.ts'
import type { Config } from '#shared/config/config.ts'

/**
 * Returns a function that opens the counts of rate limits and running calls, which all ingresses share. Without a database there is only one ingress,
 * so that function returns undefined. Outages of the counts are not logged here, because the ingress logs them.
 */
export async function fleetCountsOpener({ databaseUrl }: Config): Promise<() => FleetCounts | undefined> {
  if (databaseUrl === undefined) return () => undefined
  const { openPostgresCounts } = await import('#shared/store/postgres/fleet-counts.ts')
  return () => openPostgresCounts(databaseUrl, () => undefined)
}
