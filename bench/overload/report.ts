import { renderTable, show } from '../figures/markdown.ts'
import type { OverloadResults } from './measure.ts'

/** What overload is to come to. */
const LET_IN_MIN = 0.95
const REFUSAL_MS_MAX = 50
const GOODPUT_MIN = 0.95
/** What memory may grow by from the first third of the load to its end: less than anything that is kept of each call. */
const GROWTH_MAX = 0.1

/** The section's tables, in Markdown. */
export function renderOverload({ offered, floods }: OverloadResults): string[] {
  const { capacity, newCalls, goodput, ofCapacity, refusals, failures } = offered
  const { refusalP50, refusalP99, cameBack, letIn, memory } = offered
  const verdict = (isReached: boolean) => (isReached ? 'reached' : '**missed**')
  const rows = [
    ['capacity, new calls, answers a second', '', [capacity, newCalls, goodput].map((n) => show(n, 1)).join(', '), ''],
    [
      'goodput: answers, of the capacity',
      `≥ ${GOODPUT_MIN * 100} %`,
      `${show(ofCapacity * 100, 1)} %`,
      verdict(ofCapacity >= GOODPUT_MIN),
    ],
    ['refusals, and calls that failed', '', `${refusals}, ${failures}`, failures === 0 ? '' : '**failed**'],
    [
      'time of a refusal, p50 and p99',
      `p99 ≤ ${REFUSAL_MS_MAX} ms`,
      `${show(refusalP50, 1)}, ${show(refusalP99, 1)} ms`,
      verdict(refusalP99 <= REFUSAL_MS_MAX),
    ],
    [
      `let in at the first return, of ${cameBack}`,
      `≥ ${LET_IN_MIN * 100} %`,
      `${show(letIn * 100, 1)} %`,
      verdict(letIn >= LET_IN_MIN),
    ],
    ...(['heapMib', 'residentMib'] as const).map((which) => {
      const mib = memory.map((collected) => collected[which])
      const growth = (mib.at(-1) ?? 0) / (mib[0] ?? 0) - 1
      return [
        `${which === 'heapMib' ? 'live heap' : 'resident memory'} after a collection, at ⅓, at ⅔, at the end`,
        `grows ≤ ${GROWTH_MAX * 100} %`,
        `${mib.map((n) => show(n, 0)).join(', ')} MiB: ${show(growth * 100, 1)} %`,
        verdict(growth <= GROWTH_MAX),
      ]
    }),
  ]
  const flooded = floods.map(({ ingresses, flood, startsP50, startsMax, share }) => {
    return [String(ingresses), String(flood), show(startsP50, 0), show(startsMax, 0), `${show(share * 100, 0)} %`]
  })
  return [
    renderTable([`load of ${show(offered.loadSeconds, 0)} s`, 'target', 'measured', ''], rows),
    renderTable(['flooded ingresses', 'calls of the flood', 'behind p50', 'behind at most', 'share'], flooded),
  ]
}
