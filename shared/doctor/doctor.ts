import type { Check } from './check.ts'
import { blobsCheck, dataCheck, modelsCheck, weightsCheck } from './machine.ts'

/**
 * Returns the checks of this machine's dependencies, in order: each check needs only dependencies that earlier checks have covered. `sluice doctor`
 * and the service run these checks, so both report equal sentences. Client libraries are loaded only on request.
 */
export async function checksOfMachine(): Promise<readonly Check[]> {
  const { postgresCheck } = await import('./postgres.ts')
  const { kafkaCheck } = await import('./kafka.ts')
  return [dataCheck, blobsCheck, modelsCheck, weightsCheck, postgresCheck, kafkaCheck]
}
