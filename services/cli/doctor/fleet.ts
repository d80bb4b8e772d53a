import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type Check, skipped } from '#shared/doctor/check.ts'

/** Health checks of the fleet, read from the admin API. */
export function fleetCheck(api: JobsApi): Check {
  return {
    name: 'fleet',
    fix: 'Check the log of the service.',
    async run() {
      try {
        return await api.admin.fleetFindings()
      } catch (error) {
        if (!(error instanceof CommandError)) throw error
        // The service check already reports an unreachable service.
        const isRefused = error.exit === EXIT.refused
        return isRefused ? [skipped('fleet', 'not checked: requires a key with the admin scope')] : []
      }
    },
  }
}
