import { isDeepStrictEqual } from 'node:util'
import type { StepView } from '#services/cli/client/job.ts'
import { differencesOf } from '#shared/json/differences.ts'

/** Steps whose output is a time: it differs in each run, and everything that follows from it is a step of its own. */
const TIMES: ReadonlySet<string> = new Set(['admit'])

/** A step of one run held against another run: `missing` asked for what the other never asked for. */
export interface ComparedStep {
  readonly step: StepView
  readonly is: 'same' | 'other output' | 'missing'
}

/** Where two runs part. */
export interface Divergence {
  readonly step: StepView
  /** What the other run asked for, or got, instead: of the same kind, most like it; undefined where it has none. */
  readonly nearest: StepView | undefined
  /** One line a difference. */
  readonly differences: readonly string[]
}

/** Two runs side by side. */
export interface Comparison {
  /** The steps of the first run. */
  readonly steps: readonly ComparedStep[]
  /** Those of the second that the first never did. */
  readonly more: readonly StepView[]
  /** Undefined where they do the same and get the same. */
  readonly divergence: Divergence | undefined
}

/** Compares two runs by their steps alone: what was asked for, known by its key, and what came of it. */
export function compareRuns(first: readonly StepView[], second: readonly StepView[]): Comparison {
  const byKey = new Map(second.map((step) => [step.key, step]))
  const keys = new Set(first.map(({ key }) => key))
  const more = second.filter(({ key }) => !keys.has(key))
  const steps = first.map((step): ComparedStep => ({ step, is: stateOf(step, byKey.get(step.key)) }))
  const parted = steps.find(({ is }) => is !== 'same')
  const [extra] = more
  if (!parted) return { steps, more, divergence: extra && partedAt(extra, undefined) }
  const { step, is } = parted
  return { steps, more, divergence: partedAt(step, is === 'missing' ? nearestOf(step, more) : byKey.get(step.key)) }
}

function stateOf(step: StepView, other: StepView | undefined): ComparedStep['is'] {
  if (!other) return 'missing'
  return TIMES.has(step.kind) || isDeepStrictEqual(step.output, other.output) ? 'same' : 'other output'
}

function partedAt(step: StepView, nearest: StepView | undefined): Divergence {
  const isSameStep = nearest?.key === step.key
  const [a, b] = isSameStep ? [step.output, nearest?.output] : [step.input, nearest?.input]
  return { step, nearest, differences: nearest ? differencesOf(a, b) : [] }
}

/** Of one kind, the one with the fewest differences; the earliest of those. */
function nearestOf(step: StepView, others: readonly StepView[]): StepView | undefined {
  let nearest: { step: StepView; count: number } | undefined
  for (const other of others) {
    if (other.kind !== step.kind) continue
    const count = differencesOf(step.input, other.input).length
    if (!nearest || count < nearest.count) nearest = { step: other, count }
  }
  return nearest?.step
}
