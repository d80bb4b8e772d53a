import type { Peer } from '#shared/jobs/peers.ts'

/**
 * Jobs that a worker can have running at once, as it tells: all its models together, and no more than its slots. One with a model
 * that nothing bounds may fill them all, and so may one that names no models. The word list of moderations does not count.
 *
 * @param idOf The id of a model by its id or alias; undefined where the catalogue has none
 */
export function capacityOf(
  { slots, capacity }: Pick<Peer, 'slots' | 'capacity'>,
  idOf: (name: string) => string | undefined,
): number {
  const ids = new Set([...(capacity?.models ?? [])].flatMap((name) => idOf(name) ?? []))
  if (!capacity || ids.size === 0) return slots
  const bounds = new Map<string, number>()
  for (const [work, places] of capacity.bounds) {
    const model = work.slice(work.indexOf(' ') + 1)
    // The kinds of a model are bounded each for itself, by the same engine.
    bounds.set(model, Math.max(bounds.get(model) ?? 0, places))
  }
  let sum = 0
  for (const id of ids) sum += bounds.get(id) ?? slots
  return Math.min(slots, sum)
}
