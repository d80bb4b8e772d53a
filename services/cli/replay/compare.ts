import { isDeepStrictEqual } from 'node:util'
import type { StepView } from '#services/cli/client/job.ts'
import { differencesOf } from '#shared/json/differences.ts'

/** Kinds of steps whose output is a timestamp and thus differs in every run. An effect of the time on the run shows in later steps. */
const TIMESTAMP_KINDS: ReadonlySet<string> = new Set(['admit'])

/** A step of the first run compared with the second run. `missing`: the second run has no step with the same input. */
export interface ComparedStep {
  readonly step: StepView
  readonly is: 'same' | 'other output' | 'missing'
}

export interface Divergence {
  readonly step: StepView
  /** The most similar step of the same kind in the other run. */
  readonly nearest: StepView | undefined
  /** One line per difference between the two steps. */
  readonly differences: readonly string[]
}

export interface Comparison {
  readonly steps: readonly ComparedStep[]
  /** Steps of the second run that the first run does not have. */
  readonly more: readonly StepView[]
  /** Undefined if the runs are equal. */
  readonly divergence: Divergence | undefined
}

/** Compares two runs by their steps. Steps match by key, which is derived from kind and input, regardless of their order. */
export function compareRuns(first: readonly StepView[], second: readonly StepView[]): Comparison {
  const byKey = new Map(second.map((step) => [step.key, step]))
  const keys = new Set(first.map(({ key }) => key))
  const more = second.filter(({ key }) => !keys.has(key))
  const steps = first.map((step): ComparedStep => ({ step, is: stateOf(step, byKey.get(step.key)) }))
  const different = steps.find(({ is }) => is !== 'same')
  const [extra] = more
  if (!different) return { steps, more, divergence: extra && divergenceAt(extra, undefined) }
  const { step, is } = different
  return {
    steps,
    more,
    divergence: divergenceAt(step, is === 'missing' ? similarStepOf(step, more) : byKey.get(step.key)),
  }
}

function stateOf(step: StepView, other: StepView | undefined): ComparedStep['is'] {
  if (!other) return 'missing'
  return TIMESTAMP_KINDS.has(step.kind) || isDeepStrictEqual(step.output, other.output) ? 'same' : 'other output'
}

function divergenceAt(step: StepView, nearest: StepView | undefined): Divergence {
  const isSameStep = nearest?.key === step.key
  const [a, b] = isSameStep ? [step.output, nearest?.output] : [step.input, nearest?.input]
  return { step, nearest, differences: nearest ? differencesOf(a, b) : [] }
}

/** The step of the same kind with the fewest differences; the earliest one on a tie. */
function similarStepOf(step: StepView, others: readonly StepView[]): StepView | undefined {
  let nearest: { step: StepView; count: number } | undefined
  for (const other of others) {
    if (other.kind !== step.kind) continue
    const count = differencesOf(step.input, other.input).length
    if (!nearest || count < nearest.count) nearest = { step: other, count }
  }
  return nearest?.step
}
