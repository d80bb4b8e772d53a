import type { Check } from './check.ts'
import { blobsCheck, dataCheck, modelsCheck, weightsCheck } from './machine.ts'

/**
 * What the service depends on, in the order in which things fail: what is below needs what is above. `sluice doctor` and the service
 * itself look at the same, so that an operator reads the same sentences in both. Clients are only loaded where they are used.
 */
export async function checksOfMachine(): Promise<readonly Check[]> {
  const { postgresCheck } = await import('./postgres.ts')
  const { kafkaCheck } = await import('./kafka.ts')
  return [dataCheck, blobsCheck, modelsCheck, weightsCheck, postgresCheck, kafkaCheck]
}
