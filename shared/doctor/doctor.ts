import type { Check } from './check.ts'
import { blobsCheck, dataCheck, modelsCheck, weightsCheck } from './machine.ts'

/**
 * Returns the checks of this machine's dependencies. Each check needs only dependencies that earlier checks have tested. `sluice doctor` and the
 * service run the same checks, so their messages are equal. Client libraries are loaded only when they are needed.
 */
export async function checksOfMachine(): Promise<readonly Check[]> {
  const { postgresCheck } = await import('./postgres.ts')
  const { kafkaCheck } = await import('./kafka.ts')
  return [dataCheck, blobsCheck, modelsCheck, weightsCheck, postgresCheck, kafkaCheck]
}
