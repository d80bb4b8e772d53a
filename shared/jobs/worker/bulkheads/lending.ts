/**
 * Slots that one model lends to another, and how they are given back (docs/design.md, Bulkheads).
 *
 * Problem: a worker's slots are shared by all of its models. A fixed part for each leaves slots idle while calls wait for the
 * one busy model. Without parts, a model whose upstream hangs holds every slot until its calls meet their deadlines.
 *
 * Rules:
 * 1. A free slot is for any model. One busy model alone uses all of them.
 * 2. A slot that is freed goes to the waiting model that holds the fewest ({@link fewestFirst}), so that models converge to
 *    equal parts (max-min fairness). A second model begins as soon as any job of the first one ends.
 * 3. A model that holds more than an equal part has borrowed the rest. Each borrowed slot whose job has run for
 *    {@link LENT_MS} is replaced by an extra one, at most {@link extraMax} of them. Only models below an equal part use extra
 *    slots, and each leaves one for every three that it holds (dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 6:2, 1998).
 *    No free slot is refilled until the number of jobs is below the number of slots again.
 *
 * Example: 256 slots, 4 models. The first one hangs with 256 calls. After 0.5 s the second may run 48 calls, the third 12, the
 * fourth 3; a busy worker runs 320 jobs at most.
 *
 * A slot is a bound on concurrent jobs that mostly wait for an upstream, so that a quarter more is affordable. Engines that
 * compute in this process have a bound of their own (`parallel`, `concurrency`), which rule 3 does not raise.
 *
 * Rejected: a reserve that is always kept free (three quarters for one model): 256 streams ran 167 at a time while nothing else
 * ran. Rejected: aborting the borrower's jobs, since output that a caller has got cannot be taken back.
 */
import { quarterOf } from './lanes.ts'

/** Time after which a borrowed slot that was not given back is replaced, in milliseconds. */
export const LENT_MS = 500
/** Extra slots that one model may use for each that it leaves. */
const EXTRA_PER_LEFT = 3

/** The slots of one model. */
export interface SlotHolder {
  /** Slots that its jobs hold. */
  readonly held: number
  /** Jobs that have run for at least so many milliseconds, counted up to a maximum. */
  countOlder(ms: number, max: number): number
}

/** Maximum number of jobs beyond a worker's slots, for each lane. */
export function extraMax(slots: number): number {
  return quarterOf(slots)
}

/**
 * Jobs that a model may start beyond the slots.
 *
 * @param own The model
 * @param others All other models that hold slots
 * @param free Slots that are free: 0, or below 0 by the extra ones in use
 */
export function extraOf(own: SlotHolder, others: readonly SlotHolder[], slots: number, free: number): number {
  const max = extraMax(slots)
  const part = slots / (others.length + 1)
  if (max + free <= 0 || own.held >= part) return 0
  let lent = 0
  for (const other of others) {
    if (other.held > part) lent += Math.min(Math.ceil(other.held - part), other.countOlder(LENT_MS, max))
  }
  const left = Math.min(lent, max) + free
  if (left <= 0) return 0
  const most = Math.floor((EXTRA_PER_LEFT * left - own.held) / (EXTRA_PER_LEFT + 1))
  return Math.min(Math.ceil(part - own.held), most > 0 || own.held > 0 ? Math.max(0, most) : 1)
}

/** Models in the order in which they get slots; those that hold as many as each other stay in their order. */
export function fewestFirst<Holder extends Pick<SlotHolder, 'held'>>(holders: Iterable<Holder>): Holder[] {
  return [...holders].sort((a, b) => a.held - b.held)
}
