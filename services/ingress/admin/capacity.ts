import type { Peer } from '#shared/jobs/peers.ts'

/**
 * Maximum concurrent jobs of a worker, from its heartbeat: the sum over its models, at most its slots. A model without
 * a bulkhead may use all slots, and so may a worker that reports no models. The word list of moderations does not
 * count.
 *
 * @param idOf Model id for an id or alias; undefined if the catalogue has none
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
    // One engine runs all kinds of a model, and each kind reports the same bulkhead. So the maximum counts, not the
    // sum.
    bounds.set(model, Math.max(bounds.get(model) ?? 0, places))
  }
  let sum = 0
  for (const id of ids) sum += bounds.get(id) ?? slots
  return Math.min(slots, sum)
}
