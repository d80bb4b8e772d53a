/**
 * Slots that one model lends to another, and how they are given back (docs/internals/design.md, Bulkheads).
 *
 * The problem: a worker's slots are shared by all of its models. A fixed part for each leaves slots idle while calls wait for the
 * one busy model. Without parts, a model whose upstream hangs holds every slot until its calls reach their deadlines.
 *
 * Rules:
 * 1. A free slot is for any model. One busy model alone uses all of them.
 * 2. A freed slot goes to the waiting model that holds the fewest ({@link fewestFirst}). Thus models converge to equal parts
 *   (max-min fairness). A second model begins as soon as any job of the first one ends.
 * 3. A model that holds more than an equal part has borrowed the rest. Each borrowed slot whose job has run for {@link BORROWED_MS}
 *   is replaced by an extra one, at most {@link extraMax} of them.
 * 4. Only models below an equal part use extra slots, and each leaves one for every three that it holds. See dynamic thresholds:
 *   Choudhury and Hahne, IEEE/ACM ToN 6:2, 1998.
 * 5. No free slot is refilled until the number of jobs is below the number of slots again.
 *
 * Example: 256 slots, 4 models. The first one hangs with 256 calls. After 0.5 s the second may run 48 calls, the third 12, the
 * fourth 3. A busy worker runs at most 320 jobs.
 *
 * A slot limits concurrent jobs that mostly wait for an upstream, so a quarter more is affordable. Engines that compute in this
 * process have their own limit (`parallel`, `concurrency`), which these rules do not raise.
 *
 * Rejected: a reserve that is always kept free (three quarters for one model). With it, 256 streams ran 167 at a time although
 * nothing else ran. Rejected: aborting the borrower's jobs, since output that a caller has received cannot be taken back.
 */
import { quarterOf } from './lanes.ts'

/** Time in ms after which a borrowed slot that was not given back is replaced. */
export const BORROWED_MS = 500
/** Extra slots available to one model, per extra slot that stays free for others. */
const EXTRA_PER_LEFT = 3

export interface SlotHolder {
  readonly held: number
  /** Number of jobs that have run for at least `ms`, counted up to `max`. */
  countOlder(ms: number, max: number): number
}

/** Maximum number of jobs beyond a worker's slots, for each lane. */
export function extraMax(slots: number): number {
  return quarterOf(slots)
}

/**
 * Number of jobs that a model may start beyond the slots.
 *
 * @param own The model
 * @param others All other models that hold slots
 * @param free Free slots: 0, or negative by the number of extra slots in use
 */
export function extraOf(own: SlotHolder, others: readonly SlotHolder[], slots: number, free: number): number {
  const max = extraMax(slots)
  const part = slots / (others.length + 1)
  if (max + free <= 0 || own.held >= part) return 0
  let lent = 0
  for (const other of others) {
    if (other.held > part) lent += Math.min(Math.ceil(other.held - part), other.countOlder(BORROWED_MS, max))
  }
  const left = Math.min(lent, max) + free
  if (left <= 0) return 0
  const most = Math.floor((EXTRA_PER_LEFT * left - own.held) / (EXTRA_PER_LEFT + 1))
  return Math.min(Math.ceil(part - own.held), most > 0 || own.held > 0 ? Math.max(0, most) : 1)
}

/** Models in the order in which they receive slots: fewest held first. The sort is stable. */
export function fewestFirst<Holder extends Pick<SlotHolder, 'held'>>(holders: Iterable<Holder>): Holder[] {
  return [...holders].sort((a, b) => a.held - b.held)
}
