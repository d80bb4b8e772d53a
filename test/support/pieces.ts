import type { Pieces } from '#services/ingress/body/validate.ts'

/** Does all pieces at once. */
export function doAll<T>(work: Pieces<T>): T {
  for (;;) {
    const step = work.next()
    if (step.done) return step.value
  }
}
