/**
 * Model of the protocol of composed jobs (docs/internals/design.md, Composed jobs), for the model checker. One parent runs a step, submits
 * two children, waits for them and completes. While the parent waits, its state is `waiting`, and no worker runs it. In the names below,
 * *park* is the transition to this state, and *wake* is the transition back to the queue.
 *
 * Two workers may run the parent, and a worker that has lost the job may continue for a while. Callers may cancel jobs, and sweeps of the
 * scheduler repair what a crash has left behind.
 *
 * The row of the parent is modelled in `protocol-model.ts`, so this model assumes that claims, leases and the lease sweep are correct.
 * Every {@link FamilyGuards guard} can be switched off. The tests check that an invariant then breaks.
 */
import type { Model, Step } from './model-checker.ts'

/** Rules of the protocol. All are true in the product. Tests switch off one at a time and expect a violation. */
export const FAMILY_GUARDS = {
  /** A write of a step requires that the row has the state in_progress, and the attempt number and the worker of the run. */
  stepIsFenced: true,
  /** An attempt reads the stored steps before it runs a step, so that it repeats none. */
  stepsAreLookedUp: true,
  /** The submission of a child requires that the row of the parent still has the attempt number and the worker of the run. */
  submitIsFenced: true,
  /** The id of a child is derived from its parent and its key. */
  childIdIsDerived: true,
  /** The transition to `waiting` requires that the row has the state in_progress, and the attempt number and the worker of the run. */
  parkIsFenced: true,
  /**
   * If all children have ended before the transition of their parent to `waiting`, then the parent continues at once. Otherwise the parent would wait
   * forever, because no child ends later.
   */
  parkSeesEnds: true,
  /**
   * The transition to `waiting` locks the unfinished children, so that none of them ends before the commit. The end of a child before the commit
   * would not wake the parent.
   */
  parkLocksChildren: true,
  /** A job with a cancel request ends instead of waiting for its children. */
  cancelBeatsPark: true,
  /** A job continues after a wait only if its state is still `waiting`. */
  wakeNeedsWaiting: true,
  /** A waiting job continues only after its children have ended. */
  wakeNeedsEnds: true,
  /** If a process dies between the end of a job and the notification of its parent and children, then a sweep sends the notification. */
  settleSweeps: true,
  /** A sweep continues waiting jobs whose children have ended or whose maximum wait has elapsed. */
  wakeDueSweeps: true,
  /** The end of a job cancels its children. */
  endCancelsChildren: true,
  /** The end of a parent is marked as reported to its children (`settled`) only after every child has ended or has a cancel request. */
  settleNeedsCancels: true,
  /** If a waiting job is cancelled and may write a partial result, then it continues at once. */
  partialBeatsWaiting: true,
  /**
   * A job that has a cancel request and may write a partial result does not wait. The job continues at once, without the results of its
   * children.
   */
  partialBeatsPark: true,
  /** A job with time left for a partial result is requeued when its worker is lost. */
  cancelOutlivesWorker: true,
  /** A claim requires that the time for a partial result has not elapsed. */
  claimNeedsTime: true,
  /** A sweep ends the job when the time for a partial result has elapsed. */
  expireSweeps: true,
}
export type FamilyGuards = typeof FAMILY_GUARDS

type ParentState = 'queued' | 'in_progress' | 'waiting' | 'completed' | 'cancelled'
type Member = 'a' | 'b' | 'parent'

interface Child {
  readonly key: 'a' | 'b'
  readonly state: 'runs' | 'hangs' | 'completed' | 'cancelled'
}

interface Run {
  /**
   * Progress of the attempt. `did`: the step has run, but its result is not stored yet. `parks`: the transaction of the
   * transition to `waiting` has read the children, but is not committed yet.
   */
  at: 'idle' | 'begins' | 'did' | 'stepped' | 'submitted' | 'parks'
  attempt: number
  /** Number of children that this attempt has submitted, or found as submitted by an earlier attempt. */
  sent: number
  /** True if at least one child was running when the transition to `waiting` read the children. */
  sees: boolean
}

interface World {
  state: ParentState
  attempt: number
  cancel: boolean
  /** A cancelled job may write a partial result until the grace period for this result has elapsed, or until a second cancel. */
  readonly mayWrite: boolean
  isTimeOver: boolean
  step: boolean
  children: Child[]
  /** Ended jobs whose parent and children are not notified of the end yet. `settled`: ended jobs whose parent and children are notified. */
  toNotify: Member[]
  settled: Member[]
  runs: [Run, Run]
  isLate: boolean
  faults: number
  bad: string | undefined
}

const KEYS = ['a', 'b'] as const
const IDLE: Run = { at: 'idle', attempt: 0, sent: 0, sees: false }
const isOver = (state: ParentState) => state === 'completed' || state === 'cancelled'
const hasEnded = ({ state }: Child) => state === 'completed' || state === 'cancelled'
const hasTwins = (children: readonly Child[]) => new Set(children.map(({ key }) => key)).size < children.length

/**
 * Builds the model with a set of guards.
 *
 * @param mayWrite True if a cancelled job may write a partial result
 */
export function familyModel(guards: FamilyGuards, mayWrite = false, faultsMax = 1): Model<World> {
  const initial: World = {
    state: 'queued',
    attempt: 0,
    cancel: false,
    mayWrite,
    isTimeOver: false,
    step: false,
    children: [],
    toNotify: [],
    settled: [],
    runs: [IDLE, IDLE],
    isLate: false,
    faults: 0,
    bad: undefined,
  }
  return {
    initial,
    steps: (world) => new Steps(world, guards, faultsMax).all(),
    key: keyOf,
    violation: ({ bad, children }) => bad ?? (hasTwins(children) ? 'a child was submitted twice' : undefined),
    isOwed: () => true,
    isGoal: ({ state, children }) => isOver(state) && children.every(hasEnded),
  }
}

/** Enumerates the possible next steps of a state. Each method yields the steps of one participant, such as a worker or a caller. */
class Steps {
  readonly #world: World
  readonly #guards: FamilyGuards
  readonly #mayFail: boolean

  constructor(world: World, guards: FamilyGuards, faultsMax: number) {
    this.#world = world
    this.#guards = guards
    this.#mayFail = world.faults < faultsMax
  }

  *all(): Generator<Step<World>> {
    for (const i of [0, 1] as const) {
      yield* this.#claim(i)
      yield* this.#run(i)
    }
    yield* this.#reaper()
    yield* this.#child()
    yield* this.#caller()
    yield* this.#family()
    yield* this.#sweeps()
  }

  *#claim(i: 0 | 1) {
    const { state, runs, isTimeOver } = this.#world
    if (state !== 'queued' || runs[i].at !== 'idle' || (isTimeOver && this.#guards.claimNeedsTime)) return
    yield this.#own(`w${i} claims`, (w) => {
      if (isTimeOver) w.bad = 'a job ran after its time for a partial result'
      Object.assign(w, { state: 'in_progress', attempt: w.attempt + 1 })
      w.runs[i] = { ...IDLE, at: 'begins', attempt: w.attempt }
    })
  }

  *#run(i: 0 | 1) {
    const { runs, step, children, isLate, cancel } = this.#world
    const { at } = runs[i]
    if (at === 'idle') return
    const isMine = this.#isMine(i)
    if (at === 'begins' && step && this.#guards.stepsAreLookedUp) yield this.#at(i, 'replays its step', 'stepped')
    else if (at === 'begins') {
      yield this.#own(`w${i} does its step outside`, (w) => {
        if (isMine && step) w.bad = 'a stored step was repeated'
        w.runs[i] = { ...runs[i], at: 'did' }
      })
    }
    if (at === 'did') yield* this.#keep(i, isMine)
    if (at === 'stepped') yield* this.#submit(i, isMine)
    if (at === 'submitted' && (isLate || isToWrite(this.#world) || children.every(hasEnded))) {
      yield this.#own(`w${i} completes`, (w) => {
        w.runs[i] = IDLE
        if (isMine) end(w, 'completed')
      })
    }
    // The transition to `waiting` is two steps of the model, because it reads the children before it commits. Children may end in between.
    if (at === 'submitted' && !isLate) {
      yield this.#own(`w${i} begins to park`, (w) => {
        w.runs[i] = { ...runs[i], at: 'parks', sees: !children.every(hasEnded) }
      })
    }
    if (at === 'parks') yield* this.#park(i, isMine)
    // A job that has not run its step cannot write a partial result, so its attempt ends at once.
    if (cancel && isMine && at !== 'parks' && !(isToWrite(this.#world) && step)) {
      yield this.#own(`w${i} honours the cancel`, (w) => {
        w.runs[i] = IDLE
        end(w, 'cancelled')
      })
    }
    if (this.#mayFail)
      yield this.#fault(`w${i} crashes`, (w) => {
        w.runs[i] = IDLE
      })
  }

  *#keep(i: 0 | 1, isMine: boolean) {
    yield this.#own(`w${i} writes its step`, (w) => {
      const mayWrite = isMine || !this.#guards.stepIsFenced
      if (mayWrite && !isMine) w.bad = 'a step of a lost attempt was stored'
      if (mayWrite) w.step = true
      w.runs[i] = mayWrite ? { ...w.runs[i], at: 'stepped' } : IDLE
    })
  }

  *#submit(i: 0 | 1, isMine: boolean): Generator<Step<World>> {
    const { children, runs } = this.#world
    const key = KEYS[runs[i].sent]
    if (!key) return void (yield this.#at(i, 'has its children', 'submitted'))
    if (this.#guards.childIdIsDerived && children.some((child) => child.key === key)) {
      return void (yield this.#own(`w${i} finds child ${key}`, (w) => {
        w.runs[i].sent++
      }))
    }
    yield this.#own(`w${i} submits child ${key}`, (w) => {
      const mayWrite = isMine || !this.#guards.submitIsFenced
      if (mayWrite && !isMine) w.bad = 'a child was submitted by a lost attempt'
      if (mayWrite) w.children.push({ key, state: 'runs' })
      if (mayWrite) w.runs[i].sent++
      else w.runs[i] = IDLE
    })
  }

  *#park(i: 0 | 1, isMine: boolean) {
    yield this.#own(`w${i} parks`, (w) => {
      w.runs[i] = IDLE
      if (!isMine && this.#guards.parkIsFenced) return
      if (!isMine) w.bad = 'a lost attempt moved the job'
      const isQueued = isToWrite(w) && this.#guards.partialBeatsPark
      if (w.cancel && !isToWrite(w) && this.#guards.cancelBeatsPark) return end(w, 'cancelled')
      if (w.cancel && !isQueued) w.bad = 'a job with a cancel request waits'
      const isWaiting = (this.#world.runs[i].sees || !this.#guards.parkSeesEnds) && !isQueued
      w.state = isWaiting ? 'waiting' : 'queued'
    })
  }

  /** Requeues the parent if its worker is dead, or is paused and its lease has expired. */
  *#reaper() {
    const { state, runs, attempt } = this.#world
    if (state !== 'in_progress') return
    const isRun = runs.some((run) => run.at !== 'idle' && run.attempt === attempt)
    const requeue = (w: World) => {
      if (w.cancel && !(isToWrite(w) && this.#guards.cancelOutlivesWorker)) end(w, 'cancelled')
      else w.state = 'queued'
    }
    if (!isRun) yield this.#own('reaper queues the job again', requeue)
    else if (this.#mayFail) yield this.#fault('the job is taken from a worker that stands still', requeue)
  }

  *#child() {
    const { children, runs } = this.#world
    // While the transition of the parent to `waiting` is not committed, it locks the rows of the running children. A statement that ends a
    // child waits until the commit.
    const isLocked = this.#guards.parkLocksChildren && runs.some(({ at, sees }) => at === 'parks' && sees)
    for (const [nth, { key, state }] of children.entries()) {
      if (state !== 'runs') continue
      if (!isLocked)
        yield this.#own(`child ${key} completes`, (w) => {
          w.children[nth] = { key, state: 'completed' }
          w.toNotify.push(key)
        })
      // A hanging child is not counted as a fault, because the parent must cope with it: the wait of the parent has a maximum.
      if (key === 'a')
        yield this.#help(`child ${key} hangs`, (w) => {
          w.children[nth] = { key, state: 'hangs' }
        })
    }
  }

  *#caller() {
    const { state, cancel, mayWrite, isTimeOver, step } = this.#world
    if ((cancel && (!mayWrite || isTimeOver)) || isOver(state)) return
    yield this.#help(cancel ? 'caller cancels again' : 'caller cancels', (w) => {
      w.isTimeOver = cancel
      w.cancel = true
      if (state === 'in_progress') return
      if (!isToWrite(w) || !step) end(w, 'cancelled')
      else if (this.#guards.partialBeatsWaiting) w.state = 'queued'
      else if (state === 'waiting') w.bad = 'a job with a cancel request waits'
    })
  }

  /** Sends the notifications about an ended job to its parent and children, after the end is committed. */
  *#family() {
    const { toNotify, children } = this.#world
    for (const who of toNotify) {
      yield this.#own(`the end of ${who} is reported`, (w) => this.#tell(w, who))
      if (this.#mayFail)
        yield this.#fault(`the process that ended ${who} dies before it notifies the family`, (w) => drop(w, who))
    }
    // The notification skips children whose rows are locked by another statement. In that case the sweep must notify them later.
    if (toNotify.includes('parent') && this.#mayFail && !children.every(hasEnded)) {
      yield this.#fault('no child is notified of the end of the parent, because the children are locked', (w) => {
        drop(w, 'parent')
        if (!this.#guards.settleNeedsCancels) w.settled.push('parent')
      })
    }
  }

  #tell(w: World, who: Member): void {
    drop(w, who)
    w.settled.push(who)
    if (who !== 'parent') return this.#wake(w)
    if (!this.#guards.endCancelsChildren) return
    w.children = w.children.map((child) => (hasEnded(child) ? child : { ...child, state: 'cancelled' }))
  }

  #wake(w: World): void {
    const mayWake = w.children.every(hasEnded) || !this.#guards.wakeNeedsEnds
    if (!mayWake || (w.state !== 'waiting' && this.#guards.wakeNeedsWaiting)) return
    if (isOver(w.state)) w.bad = 'a job left a terminal state'
    else if (!w.children.every(hasEnded)) w.bad = 'a job was woken before its children had ended'
    w.state = 'queued'
  }

  *#sweeps() {
    const { state, children, settled, toNotify, isLate, cancel } = this.#world
    const ended: Member[] = children.filter(hasEnded).map(({ key }) => key)
    if (isOver(state)) ended.push('parent')
    for (const who of this.#guards.settleSweeps ? ended : []) {
      if (settled.includes(who) || toNotify.includes(who)) continue
      yield this.#own(`sweep notifies the family of the end of ${who}`, (w) => this.#tell(w, who))
    }
    const pass = (w: World) => {
      w.isLate = true
    }
    if (!isLate && children.some((child) => child.state === 'hangs')) yield this.#own('it is time to wrap up', pass)
    if (isLate && state === 'waiting' && this.#guards.wakeDueSweeps)
      yield this.#own('sweep wakes who has waited long enough', (w) => {
        w.state = 'queued'
      })
    if (isToWrite(this.#world) && !isOver(state))
      yield this.#own('the time to write is over', (w) => {
        w.isTimeOver = true
      })
    if (cancel && state === 'queued' && !isToWrite(this.#world) && this.#guards.expireSweeps)
      yield this.#own('sweep ends who has written nothing in time', (w) => end(w, 'cancelled'))
  }

  #isMine(i: 0 | 1): boolean {
    const { state, attempt, runs } = this.#world
    return state === 'in_progress' && runs[i].attempt === attempt
  }

  #at(i: 0 | 1, what: string, at: Run['at']): Step<World> {
    return this.#own(`w${i} ${what}`, (w) => {
      w.runs[i] = { ...w.runs[i], at }
    })
  }

  #own(name: string, change: (world: World) => void): Step<World> {
    const to = copy(this.#world)
    change(to)
    return { name, to, isOwn: true }
  }

  /** A step of the environment. The step may happen or not, so progress must not depend on it. */
  #help(name: string, change: (world: World) => void): Step<World> {
    return { ...this.#own(name, change), isOwn: false }
  }

  #fault(name: string, change: (world: World) => void): Step<World> {
    const step = this.#own(`! ${name}`, change)
    step.to.faults++
    return { ...step, isOwn: false }
  }
}

function copy(world: World): World {
  const { children, toNotify, settled, runs } = world
  return {
    ...world,
    children: [...children],
    toNotify: [...toNotify],
    settled: [...settled],
    runs: [{ ...runs[0] }, { ...runs[1] }],
  }
}

function keyOf(w: World): string {
  // Two states that differ only in the attempt numbers have the same key. For a run, only one fact matters: whether its attempt is the current
  // one.
  const runs = w.runs.map(({ at, attempt, sent, sees }) => `${at}${attempt === w.attempt}${sent}${sees}`)
  const children = w.children.map(({ key, state }) => key + state)
  const flags = `${w.cancel}${w.isTimeOver}${w.step}${w.isLate}${w.faults}`
  return [w.state, flags, ...runs, ...children, ...w.toNotify.toSorted(), '|', ...w.settled.toSorted(), w.bad].join()
}

/** Whether the job is cancelled and still has time for a partial result. */
function isToWrite({ cancel, mayWrite, isTimeOver }: World): boolean {
  return cancel && mayWrite && !isTimeOver
}

function end(w: World, state: 'completed' | 'cancelled'): void {
  if (state === 'cancelled' && isToWrite(w) && w.step) w.bad = 'a job ended without its partial result'
  w.state = state
  w.toNotify.push('parent')
}

function drop(w: World, who: Member): void {
  w.toNotify = w.toNotify.filter((other) => other !== who)
}
