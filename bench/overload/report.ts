import { renderTable, show } from '../figures/markdown.ts'
import type { OverloadResults } from './measure.ts'

/** What overload is to come to. */
const LET_IN_MIN = 0.95
const REFUSAL_MS_MAX = 50

/** The section's tables, in Markdown. */
export function renderOverload({ offered, floods }: OverloadResults): string[] {
  const { capacity, newCalls, goodput, refusals, refusalP50, refusalP99, cameBack, letIn, memory, failures } = offered
  const verdict = (isReached: boolean) => (isReached ? 'reached' : '**missed**')
  const rows = [
    ['capacity, new calls, answers a second', '', [capacity, newCalls, goodput].map((n) => show(n, 1)).join(', '), ''],
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
    [
      'memory at the beginning, in the middle, at the end',
      '',
      `${memory.map((mib) => show(mib, 0)).join(', ')} MiB`,
      '',
    ],
  ]
  const flooded = floods.map(({ ingresses, flood, startsP50, startsMax, share }) => {
    return [String(ingresses), String(flood), show(startsP50, 0), show(startsMax, 0), `${show(share * 100, 0)} %`]
  })
  return [
    renderTable([`load of ${show(offered.loadSeconds, 0)} s`, 'target', 'measured', ''], rows),
    renderTable(['flooded ingresses', 'calls of the flood', 'behind p50', 'behind at most', 'share'], flooded),
  ]
}
