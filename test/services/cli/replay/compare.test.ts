import { describe, expect, test } from 'vitest'
import type { StepView } from '#services/cli/client/job.ts'
import { compareRuns } from '#services/cli/commands/replay.ts'

/** Returns the recorded steps of a research run. The key of each step consists of its kind and its input. */
const run = (...steps: [kind: string, input: unknown, output?: unknown][]): StepView[] =>
  steps.map(([kind, input, output = null], at) => {
    return { number: at + 1, kind, key: `${kind} ${JSON.stringify(input)}`, input, output }
  })

describe('the comparison of two research runs', () => {
  test('reports no difference for equal steps in another order or at other times', () => {
    const one = run(['admit', {}, 1], ['search', { query: 'a' }, [1]], ['search', { query: 'b' }, [2]])
    const two = run(['admit', {}, 2], ['search', { query: 'b' }, [2]], ['search', { query: 'a' }, [1]])
    expect(compareRuns(one, two)).toMatchObject({ divergence: undefined, more: [] })
  })

  test('reports the first missing step, and how the most similar step differs', () => {
    const one = run(
      ['search', { query: 'a', limit: 10 }],
      ['search', { query: 'b', limit: 10 }],
      ['read', { url: 'x' }],
    )
    const two = run(
      ['search', { query: 'a', limit: 10 }],
      ['search', { query: 'c', limit: 5 }],
      ['search', { query: 'd', limit: 10 }],
    )
    const { divergence, steps, more } = compareRuns(one, two)
    expect(steps.map(({ is }) => is)).toEqual(['same', 'missing', 'missing'])
    expect(more.map(({ number }) => number)).toEqual([2, 3])
    expect(divergence).toMatchObject({ step: { number: 2 }, nearest: { number: 3 }, differences: ['query: "b" ≠ "d"'] })
  })

  test('reports the first step whose outputs differ', () => {
    const one = run(['search', { query: 'a' }, { hits: ['x', 'y'] }])
    const two = run(['search', { query: 'a' }, { hits: ['x', 'z'] }])
    expect(compareRuns(one, two)).toMatchObject({
      steps: [{ is: 'other output' }],
      divergence: { nearest: { number: 1 }, differences: ['hits.1: "y" ≠ "z"'] },
    })
  })

  test('reports an additional step, and the most similar step if one exists', () => {
    const { divergence } = compareRuns(run(['search', 1]), run(['search', 1], ['read', 2]))
    expect(divergence).toMatchObject({ step: { number: 2, kind: 'read' }, nearest: undefined, differences: [] })
    expect(compareRuns(run(['read', 2]), run(['search', 1])).divergence?.nearest).toBeUndefined()
  })
})
