import type { Config } from '#shared/config/config.ts'
import type { FleetCounts } from '#shared/limits/fleet-counts.ts'

/**
 * Gives what opens the counts of a fleet; that gives undefined without a database, where one ingress is all there is. An
 * ingress tells of their outages itself.
 */
export async function fleetCountsOpener({ databaseUrl }: Config): Promise<() => FleetCounts | undefined> {
  if (databaseUrl === undefined) return () => undefined
  // The client is only loaded where it is used.
  const { openPostgresCounts } = await import('#shared/limits/postgres.ts')
  return () => openPostgresCounts(databaseUrl, () => undefined)
}
