import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type Check, skipped } from '#shared/doctor/check.ts'

/** What the service finds wrong with its fleet, in its own words: for keys with the scope admin. */
export function fleetCheck(api: JobsApi): Check {
  return {
    name: 'fleet',
    fix: 'Look at the log of the service.',
    async run() {
      try {
        return await api.admin.fleetFindings()
      } catch (error) {
        if (!(error instanceof CommandError)) throw error
        // That nothing answers is said of the service already.
        const isRefused = error.exit === EXIT.refused
        return isRefused ? [skipped('fleet', 'not looked at: that takes a key with the scope admin')] : []
      }
    },
  }
}
