import { renderTable, show } from '../figures/markdown.ts'
import { FLEETS } from './fleet.ts'
import { FLOODS, JOB_MS, type TurnsSample, type Waits } from './measure.ts'

/** The section's table, in Markdown. */
export function renderTurns(samples: readonly TurnsSample[]): string {
  const rows = FLEETS.flatMap((fleet) =>
    FLOODS.flatMap((flood) => {
      const sample = samples.find((one) => one.fleet === fleet && one.flood === flood)
      const alone = samples.find((one) => one.fleet === fleet && one.flood === 'nothing')
      if (!sample || !alone) return []
      const kinds = [
        ['call', sample.calls, alone.calls],
        ['durable job', sample.durable, alone.durable],
      ] as const
      return kinds.map(([kind, waits, solo]) => [fleet, flood, kind, ...cellsOf(waits, solo)])
    }),
  )
  const head = ['service', 'tenant A', 'of tenant B', 'p50 wait ms', 'p99 wait ms', 'goal', '', 'refused']
  return renderTable(head, rows)
}

function cellsOf(waits: Waits, solo: Waits): string[] {
  const goal = 2 * solo.p99 + JOB_MS
  const verdict = waits === solo ? '' : waits.p99 <= goal && waits.refused === 0 ? 'reached' : 'missed'
  return [
    show(waits.p50, 0),
    show(waits.p99, 0),
    waits === solo ? '' : `≤ ${show(goal, 0)}`,
    verdict,
    String(waits.refused),
  ]
}
