/**
 * An explicit-state model checker. The checker visits every reachable state breadth first, so the first counterexample that it finds is a
 * shortest one.
 *
 * The checker finds two types of defects. (1) A state violates an invariant. (2) A job is stuck: without further faults, and without further steps
 * of the environment (callers, clocks), the system cannot reach the goal from a state.
 */

export interface Step<S> {
  readonly name: string
  readonly to: S
  /** True if the system certainly takes this step at some time. False for faults, and for steps of a caller or a clock, which may never happen. */
  readonly isOwn: boolean
}

export interface Model<S> {
  readonly initial: S
  steps(state: S): Iterable<Step<S>>
  /** Returns a text that identifies the state. Two states with the same text count as one, and only the first is explored. */
  key(state: S): string
  /** Returns the invariant that a state violates, or undefined. */
  violation(state: S): string | undefined
  /** Whether the goal must be reachable from this state. */
  isOwed(state: S): boolean
  isGoal(state: S): boolean
}

export interface Verdict {
  readonly states: number
  /** The violated invariant. Undefined if the model satisfies every invariant. */
  readonly violation: string | undefined
  /** Names of the steps that lead from the initial state to the violation. */
  readonly path: string[]
}

export const STUCK = 'stuck: the goal can never be reached'

/**
 * Explores all states, or stops at the first violation.
 *
 * @throws Error with more than `statesMax` states
 */
export function check<S>(model: Model<S>, statesMax = 300_000): Verdict {
  const states = [model.initial]
  const ids = new Map([[model.key(model.initial), 0]])
  const from: { id: number; step: string }[] = [{ id: -1, step: '' }]
  const ownPredecessors: number[][] = [[]]
  const verdict = (violation: string | undefined, id: number): Verdict => {
    const path: string[] = []
    for (let at = from[id]; at && at.id >= 0; at = from[at.id]) path.unshift(at.step)
    return { states: states.length, violation, path: violation === undefined ? [] : path }
  }
  for (let id = 0; id < states.length; id++) {
    const state = states[id] as S
    const violation = model.violation(state)
    if (violation !== undefined) return verdict(violation, id)
    for (const { name, to, isOwn } of model.steps(state)) {
      const key = model.key(to)
      let next = ids.get(key)
      if (next === undefined) {
        next = states.push(to) - 1
        if (next > statesMax) throw new Error(`more than ${statesMax} states`)
        ids.set(key, next)
        from.push({ id, step: name })
        ownPredecessors.push([])
      }
      if (isOwn) ownPredecessors[next]?.push(id)
    }
  }
  const stuck = findStuck(model, states, ownPredecessors)
  return stuck === undefined ? verdict(undefined, 0) : verdict(STUCK, stuck)
}

/** Returns the first state that must reach the goal and cannot do so by steps with `isOwn`. Searches backwards from the goal states. */
function findStuck<S>(model: Model<S>, states: readonly S[], ownPredecessors: readonly number[][]): number | undefined {
  const open = states.flatMap((state, id) => (model.isGoal(state) ? [id] : []))
  const canReach = new Set(open)
  for (let id = open.pop(); id !== undefined; id = open.pop()) {
    for (const previous of ownPredecessors[id] ?? []) {
      if (canReach.has(previous)) continue
      canReach.add(previous)
      open.push(previous)
    }
  }
  const stuck = states.findIndex((state, id) => model.isOwed(state) && !canReach.has(id))
  return stuck < 0 ? undefined : stuck
}
