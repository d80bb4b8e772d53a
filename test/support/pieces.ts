import type { Pieces } from '#services/ingress/body/validate.ts'

/** Runs a divided computation to its end, without returning to the event loop between its pieces. */
export function doAll<T>(work: Pieces<T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}
