/**
 * An explicit-state checker: visits every state a model can reach, in breadth, so the first counterexample is a shortest
 * one. It looks for two things: a state in which something forbidden has happened, and one from which the goal cannot be
 * reached any more by the model's own steps, without luck, faults or help from outside.
 */

/** A way from one state to the next. */
export interface Step<S> {
  readonly name: string
  readonly to: S
  /** The system does it by itself, sooner or later. Faults, callers and clocks need not come to help. */
  readonly isOwn: boolean
}

export interface Model<S> {
  readonly initial: S
  steps(state: S): Iterable<Step<S>>
  /** Equal for equal states. */
  key(state: S): string
  /** What is wrong with a state; undefined when nothing is. */
  violation(state: S): string | undefined
  /** Whether anything is owed in a state, and whether it has been given. */
  isOwed(state: S): boolean
  isGoal(state: S): boolean
}

export interface Verdict {
  readonly states: number
  /** Undefined when the model keeps every promise. */
  readonly violation: string | undefined
  /** Names of the steps that lead to it. */
  readonly path: string[]
}

export const STUCK = 'stuck: the goal can never be reached'

/** Explores a model wholly, or up to the first violation. @throws Error when it has more than `statesMax` states */
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

/** The first state that owes the goal and cannot come to it by the system's own steps. */
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
