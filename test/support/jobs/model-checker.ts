/**
 * An explicit-state model checker. Visits every reachable state breadth first, so the first counterexample is a shortest one.
 *
 * The checker finds two kinds of defects. (1) A state violates an invariant. (2) The goal is unreachable from a state by the model's own
 * steps, without faults or help from the environment.
 */

/** A transition between two states. */
export interface Step<S> {
  readonly name: string
  readonly to: S
  /** The system takes this step eventually, without faults, callers or clocks. */
  readonly isOwn: boolean
}

export interface Model<S> {
  readonly initial: S
  steps(state: S): Iterable<Step<S>>
  /** Equal for equal states. */
  key(state: S): string
  /** The violated invariant of a state; undefined without one. */
  violation(state: S): string | undefined
  /** Whether the model must still reach its goal from this state. */
  isOwed(state: S): boolean
  isGoal(state: S): boolean
}

export interface Verdict {
  readonly states: number
  /** Undefined if the model keeps every invariant. */
  readonly violation: string | undefined
  /** Names of the steps that lead to it. */
  readonly path: string[]
}

export const STUCK = 'stuck: the goal can never be reached'

/** Explores all states, or stops at the first violation. @throws Error with more than `statesMax` states */
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

/** Returns the first state from which the system's own steps cannot reach a goal. */
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
