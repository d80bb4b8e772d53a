import type { Pieces } from '#services/ingress/body/validate.ts'

/** Runs all pieces without yielding. */
export function doAll<T>(work: Pieces<T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}
