import type { Check } from './check.ts'
import { blobsCheck, dataCheck, modelsCheck, weightsCheck } from './machine.ts'

/**
 * Checks of this machine's dependencies, ordered so that each check needs only those before it. `sluice doctor` and the service run the same checks,
 * so both report the same sentences. Client libraries are loaded only when these checks are requested.
 */
export async function checksOfMachine(): Promise<readonly Check[]> {
  const { postgresCheck } = await import('./postgres.ts')
  const { kafkaCheck } = await import('./kafka.ts')
  return [dataCheck, blobsCheck, modelsCheck, weightsCheck, postgresCheck, kafkaCheck]
}
