/** Seeded ids. The module imports no product code, so that the mock of `newId` is complete before product code imports it. */
import { openRandom, type Random } from '../chaos/load/random.ts'

let ids: Random = openRandom(0)

/** Sets the seed of the ids of the next simulation. */
export function seedIds(seed: number): void {
  ids = openRandom(seed)
}

/** Replaces `newId`: ids are part of the schedule. */
export function seededId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; i++) id += ids.between(0, 35).toString(36)
  return id
}
