/**
 * Model of the protocol of durable jobs (docs/internals/protocol.md, State transitions), for the model checker. The participants are one job, two
 * workers, the sweeps of the scheduler, a caller that may cancel, and a client that follows the job. The queue may lose and duplicate records.
 *
 * The steps of all participants interleave freely. Up to `faultsMax` faults happen at any point. Time is not modelled: a timer may fire at once.
 * Every {@link Guards guard} can be switched off. Then an invariant must break; `test/shared/jobs/protocol-model.test.ts` lists which one.
 */
import type { Model, Step } from './model-checker.ts'

/** Rules of the protocol. All are true in the product. Tests switch off one at a time and expect a violation. */
export const GUARDS = {
  /** The ingress answers 202 only after the job is committed. */
  commitBeforeAccept: true,
  /** A repeated request with the same idempotency key returns the same job. */
  idempotentCreate: true,
  /** A claim requires the state queued. */
  claimNeedsQueued: true,
  /** A claim requires that the job has not expired. */
  claimNeedsTime: true,
  /** A claim increments the attempt number, and no statement lowers the number. */
  attemptRises: true,
  /** The transitions to completed and failed require the state in_progress. */
  endNeedsInProgress: true,
  /**
   * The transitions to completed and failed require that the row still has the attempt number and the worker of the run. One of the two conditions
   * would be enough, because an attempt has only one worker. The SQL statements check both.
   */
  endNeedsSameRun: true,
  /** A retry or requeue requires that the row has the state in_progress, and the attempt number and the worker of the run. */
  returnIsFenced: true,
  /** A write of output requires that the row has the state in_progress, and the attempt number and the worker of the run. */
  outputIsFenced: true,
  /** The writes of a run are numbered, so that a repeated write counts once. */
  writesAreNumbered: true,
  /** A terminal event is published after the commit of its transition. */
  commitBeforePublish: true,
  /** The claim and the end of a run are on disk before they are acknowledged. */
  claimIsSynchronous: true,
  endIsSynchronous: true,
  /** The transition to cancelled by a worker requires that the row still has the attempt number and the worker of the run. */
  honourIsFenced: true,
  /** A cancel of a waiting job checks in its transition that the job still waits. */
  cancelNeedsWaiting: true,
  /** A job with a cancel request never returns to the queue. */
  cancelBeatsReturn: true,
  /** The sweep cancels a job whose worker ignores the cancel. */
  reaperForcesCancel: true,
  /** The scheduler runs the lease sweep, which requeues the jobs of workers whose lease has expired. */
  reaperRuns: true,
  /** The lease sweep checks in its transition that the job is still in progress, in the attempt that the sweep has read. */
  reapIsFenced: true,
  /** The lease sweep requeues only jobs of workers whose lease has expired. */
  reapNeedsExpiredLease: true,
  /** After an outage of the store, the lease sweep waits until live workers had time to renew their leases. */
  reaperWaitsAfterOutage: true,
  /** A job fails if too many workers died while they ran it (a poison job). */
  poisonFails: true,
  /** If a worker renews an expired lease late, then the worker did not die. The crash that was counted for its job is subtracted again. */
  lapsesAreSpared: true,
  /** If a worker cannot renew its lease, then it stops its jobs before the lease ends, and requeues them. */
  runsEndWithLease: true,
  /** The lease sweep fails running jobs whose deadline has passed, even if their worker is alive. */
  reaperEndsOverdue: true,
  /** A sweep expires waiting jobs past their deadline. */
  expirySweeps: true,
  /** An expiry checks in its transition that the job still waits. */
  expireNeedsWaiting: true,
  /** A sweep queues scheduled jobs that are due. */
  dueSweeps: true,
  /** The start of a due job checks in its transition that the job is still scheduled. */
  dueNeedsScheduled: true,
  /** The record of a job that stays queued is published again after a while, because the queue may have lost the first record. */
  republishes: true,
  /** A worker requeues a job that the store has assigned to it, but that it does not run. This happens if the response to a claim was lost. */
  workersReconcile: true,
  /** A client that follows the job also polls the store. The process that ended the job may have died before it published the end. */
  followersReadStore: true,
}
export type Guards = typeof GUARDS

/** Variants of the protocol. All invariants must hold in each variant, whereas an invariant breaks if a guard is switched off. */
export interface Variant {
  /** The worker acknowledges the queue record before it claims the job. A crash in between loses the record, which must be published again. */
  readonly acknowledgesFirst?: boolean
  readonly faultsMax?: number
}

type JobState = 'queued' | 'scheduled' | 'in_progress' | 'completed' | 'failed' | 'cancelled' | 'expired'
/** Process that has claimed the job: one of the two workers, or an earlier process of a worker, before its restart (`dead`). */
type Owner = 0 | 1 | 'dead'

interface RowState {
  state: JobState
  attempt: number
  /** Highest attempt number that any claim has used. */
  top: number
  owner: Owner
  /** True while the lease of the process in `owner` is valid. */
  lease: boolean
  cancel: boolean
  crashes: number
  /**
   * One character for each process that lost the job. `0` and `1`: a worker. `d`: a process that has died. `r`: a worker that renewed its lease
   * late, and whose loss still counts as a crash.
   */
  lostBy: string
  tries: number
  /** Number of times that the output of this attempt was recorded. More than one is a defect, because each attempt has one output. */
  output: number
}

interface WorkerState {
  /**
   * State of the worker's run. `hung`: the run never ends, but the worker is alive. `lapsed`: the run was stopped before the end of the lease,
   * and the job is not requeued yet. `again`: the worker repeats a write of output, because the response was lost. `ended`: the end is stored,
   * but not published yet. `spoke`: the end is published, but not stored yet (only without the guard `commitBeforePublish`).
   */
  at: 'idle' | 'holds' | 'runs' | 'again' | 'hung' | 'lapsed' | 'ended' | 'spoke'
  attempt: number
  end: JobState | ''
  /** The worker was paused when its lease ended. The worker takes at most one more step before it detects the end. */
  isFrozen?: true
}

interface World {
  row: RowState | undefined
  /** Row that would remain after a crash of the database. Undefined if the current row is on disk. */
  disk: RowState | undefined
  jobs: number
  accepted: boolean
  /** The ingress has committed the job and has not published it yet. */
  publishing: boolean
  records: number
  workers: [WorkerState, WorkerState]
  /** A sweep or a caller that has read the row and will write it in a later step. `attempt` is the value that was read. */
  view: { of: 'reap' | 'expire' | 'due' | 'cancel'; attempt: number } | undefined
  isLate: boolean
  wasCancelled: boolean
  /** True after an outage of the store, during which no worker could renew its lease. Then expired leases do not show that workers died. */
  isUnsettled: boolean
  /** Number of further attempts that the protocol justifies, for example by a retry. Below 0, a job was started without a reason. */
  startsLeft: number
  /** Final state that was reported to the client that follows the job. */
  shown: JobState | ''
  faults: number
  bad: string | undefined
}

const CRASHES_MAX = 2
const TRIES_MAX = 1
const RECORDS_MAX = 2
const TERMINAL: ReadonlySet<JobState | ''> = new Set(['completed', 'failed', 'cancelled', 'expired'])
const IDLE: WorkerState = { at: 'idle', attempt: 0, end: '' }
const isWaiting = (row: RowState) => row.state === 'queued' || row.state === 'scheduled'

export function protocolModel(guards: Guards, variant: Variant = {}): Model<World> {
  const initial: World = {
    row: undefined,
    disk: undefined,
    jobs: 0,
    accepted: false,
    publishing: false,
    records: 0,
    workers: [IDLE, IDLE],
    view: undefined,
    isLate: false,
    wasCancelled: false,
    isUnsettled: false,
    startsLeft: 1,
    shown: '',
    faults: 0,
    bad: undefined,
  }
  return {
    initial,
    steps: (world) => new Steps(world, guards, variant).all(),
    key: keyOf,
    violation: violationOf,
    isOwed: (world) => world.accepted,
    isGoal: ({ row, shown }) => row !== undefined && shown === row.state,
  }
}

function keyOf(world: World): string {
  const { row, disk, workers, view } = world
  // Part of the state's key that describes the row. After the end of a job its losses are left out, because they no longer influence any step.
  // The field `crashes` is left out, because it equals the number of losses.
  const rowKey = (r: RowState | undefined) =>
    r && `${r.state}${r.attempt}${r.top}${r.owner}${r.lease}${r.cancel}${r.tries}${r.output}${lossesOf(r)}`
  const workerKey = (w: WorkerState) => `${w.at}${w.attempt}${w.end}${w.isFrozen ?? ''}`
  return [
    rowKey(row),
    rowKey(disk),
    ...workers.map(workerKey),
    view && view.of + view.attempt,
    world.shown,
    world.bad,
    `${world.jobs}${world.records}${world.startsLeft}${world.faults}`,
    `${world.accepted}${world.publishing}${world.isLate}${world.wasCancelled}${world.isUnsettled}`,
  ].join('|')
}

function lossesOf({ state, lostBy }: RowState): string {
  return TERMINAL.has(state) ? '' : [...lostBy].toSorted().join('')
}

function violationOf({ bad, jobs, accepted, row, workers, startsLeft, shown }: World): string | undefined {
  if (bad !== undefined) return bad
  if (jobs > 1) return 'one request made two jobs'
  if (accepted && !row) return 'an accepted job is not in the store'
  const runs = workers.filter(({ at }) => at === 'runs' || at === 'again' || at === 'hung')
  if (runs.length === 2 && runs[0]?.attempt === runs[1]?.attempt) return 'two runs share an attempt'
  if (workers.every(({ at, isFrozen }) => (at === 'runs' || at === 'again') && !isFrozen))
    return 'two workers ran the job at once'
  if (startsLeft < 0) return 'a run began while another was in order'
  if (row && row.output > 1) return 'output was recorded twice'
  if (shown !== '' && row && shown !== row.state) return 'the follower saw another end than the store'
  return undefined
}

/** Enumerates the possible next steps of a state. Each method yields the steps of one participant. */
class Steps {
  readonly #world: World
  readonly #guards: Guards
  readonly #variant: Variant
  readonly #mayFail: boolean

  constructor(world: World, guards: Guards, variant: Variant) {
    this.#world = world
    this.#guards = guards
    this.#variant = variant
    this.#mayFail = world.faults < (variant.faultsMax ?? 2)
  }

  *all(): Generator<Step<World>> {
    yield* this.#ingress()
    const { row } = this.#world
    if (!row) return
    yield* this.#queue(row)
    for (const i of [0, 1] as const) yield* this.#worker(i, row)
    yield* this.#leases(row)
    yield* this.#reaper(row)
    yield* this.#sweeps(row)
    yield* this.#caller(row)
    yield* this.#follower(row)
    yield* this.#database()
  }

  *#ingress() {
    const { row, accepted, publishing, jobs } = this.#world
    if (!row && this.#guards.commitBeforeAccept) {
      yield this.#own('create', (w) => {
        w.row = newRow()
        w.jobs = 1
        w.accepted = true
        w.publishing = true
      })
    }
    if (!row && !this.#guards.commitBeforeAccept && !accepted)
      yield this.#own('accept', (w) => {
        w.accepted = true
      })
    if (row && jobs === 1 && this.#mayFail) {
      const again = this.#guards.idempotentCreate ? 0 : 1
      yield this.#fault('create again, as the answer got lost', (w) => {
        w.jobs += again
      })
    }
    if (publishing) {
      yield this.#own('publish', (w) => {
        w.publishing = false
        w.records = Math.min(RECORDS_MAX, w.records + 1)
      })
      if (this.#mayFail)
        yield this.#fault('ingress crashes', (w) => {
          w.publishing = false
        })
    }
  }

  *#queue({ state }: RowState) {
    const { records, workers } = this.#world
    if (records > 0 && this.#mayFail) {
      yield this.#fault('record lost', (w) => {
        w.records--
      })
      if (records < RECORDS_MAX)
        yield this.#fault('record doubled', (w) => {
          w.records++
        })
    }
    const isNowhere = records === 0 && workers.every(({ at }) => at !== 'holds')
    if (this.#guards.republishes && state === 'queued' && isNowhere) {
      yield this.#own('publish again', (w) => {
        w.records++
      })
    }
  }

  *#worker(i: 0 | 1, row: RowState) {
    const { at } = this.#world.workers[i]
    if (at === 'idle') yield* this.#idle(i, row)
    if (at === 'holds') yield* this.#claim(i, row)
    if (at === 'runs') yield* this.#run(i, row)
    if (at === 'lapsed') {
      yield this.#own(`w${i} hands back what it stopped`, (w) => {
        if (this.#isMine(i, row)) this.#return(w, 'queued')
        w.workers[i] = IDLE
      })
    }
    if (at === 'again') yield this.#own(`w${i} repeats its output`, (w) => this.#record(w, i, 'runs'))
    if (at === 'spoke')
      yield this.#own(`w${i} commits after speaking`, (w) => this.#end(w, i, w.workers[i].end as JobState))
    if (at === 'ended') {
      yield this.#own(`w${i} speaks`, (w) => {
        show(w, w.workers[i].end)
        w.workers[i] = IDLE
      })
    }
    if (at !== 'idle' && this.#mayFail) yield this.#fault(`w${i} crashes`, (w) => crash(w, i))
  }

  *#idle(i: 0 | 1, row: RowState) {
    if (this.#world.records > 0) {
      yield this.#own(`w${i} takes`, (w) => {
        w.records--
        w.workers[i] = { at: 'holds', attempt: this.#variant.acknowledgesFirst ? 1 : 0, end: '' }
      })
    }
    const isMine = row.state === 'in_progress' && row.owner === i
    if (isMine && this.#guards.workersReconcile) {
      yield this.#own(`w${i} hands back what it does not run`, (w) => this.#return(w, 'queued'))
    }
  }

  *#claim(i: 0 | 1, row: RowState) {
    const isQueued = row.state === 'queued' || !this.#guards.claimNeedsQueued
    if (!isQueued || (this.#world.isLate && this.#guards.claimNeedsTime)) {
      yield this.#own(`w${i} drops the record`, (w) => {
        w.workers[i] = IDLE
      })
      return
    }
    yield this.#own(`w${i} claims`, (w) => {
      this.#start(w, i)
      w.workers[i] = { at: 'runs', attempt: (w.row as RowState).attempt, end: '' }
    })
    if (!this.#mayFail) return
    yield this.#fault(`w${i} claims and the answer is lost`, (w) => {
      this.#start(w, i)
      w.workers[i] = IDLE
    })
    yield this.#fault(`w${i} claims and crashes`, (w) => {
      this.#start(w, i)
      crash(w, i)
    })
  }

  #start(w: World, i: 0 | 1): void {
    const row = w.row as RowState
    if (TERMINAL.has(row.state)) w.bad = 'a job left a terminal state'
    if (w.isLate) w.bad = 'a run began after the deadline'
    if (row.cancel) w.bad = 'a run started after a cancel request'
    if (!this.#guards.claimIsSynchronous) w.disk ??= { ...row }
    w.startsLeft--
    row.state = 'in_progress'
    row.attempt += this.#guards.attemptRises ? 1 : row.attempt === 0 ? 1 : 0
    if (row.attempt <= row.top) w.bad = 'two runs share an attempt'
    row.top = row.attempt
    Object.assign(row, { owner: i, lease: true, output: 0 })
  }

  *#run(i: 0 | 1, row: RowState) {
    const isMine = this.#isMine(i, row)
    for (const end of ['completed', 'failed'] as const) {
      if (this.#guards.commitBeforePublish) yield this.#own(`w${i} ends ${end}`, (w) => this.#end(w, i, end))
      else {
        yield this.#own(`w${i} speaks ${end} before it commits`, (w) => {
          show(w, end)
          w.workers[i] = { ...w.workers[i], at: 'spoke', end }
        })
      }
    }
    yield this.#own(`w${i} records output`, (w) => this.#record(w, i, 'runs'))
    if (this.#mayFail) {
      yield this.#fault(`w${i} records output and the answer is lost`, (w) => this.#record(w, i, 'again'))
      yield this.#fault(`w${i} hangs`, (w) => {
        w.workers[i] = { ...w.workers[i], at: 'hung' }
      })
    }
    if (row.cancel && (isMine || !this.#guards.honourIsFenced)) {
      yield this.#own(`w${i} honours the cancel`, (w) => this.#end(w, i, 'cancelled', true))
    }
    if (row.tries < TRIES_MAX && (isMine || !this.#guards.returnIsFenced)) {
      for (const to of ['queued', 'scheduled'] as const) {
        yield this.#own(`w${i} gives back, ${to}`, (w) => {
          if (!isMine)
            w.bad = 'a lost attempt moved the job'
            // The model bounds retries and requeues by one counter. In the protocol, only a retry uses up an attempt.
          ;(w.row as RowState).tries++
          this.#return(w, to)
          w.workers[i] = IDLE
        })
      }
    }
  }

  #isMine(i: 0 | 1, row: RowState): boolean {
    return row.state === 'in_progress' && row.owner === i && row.attempt === this.#world.workers[i].attempt
  }

  /** Whether the guards allow the worker to complete or fail the job. */
  #mayEnd(i: 0 | 1): boolean {
    const { row, workers } = this.#world
    const isInProgress = row?.state === 'in_progress'
    const isSameRun = row?.owner === i && row.attempt === workers[i].attempt
    return (isInProgress || !this.#guards.endNeedsInProgress) && (isSameRun || !this.#guards.endNeedsSameRun)
  }

  /** The transitions to completed, failed and cancelled: a compare-and-set of the row. Afterwards, the worker publishes the end. */
  #end(w: World, i: 0 | 1, end: JobState, mayEnd = this.#mayEnd(i)): void {
    const row = w.row as RowState
    const isMine = this.#isMine(i, row)
    if (!mayEnd) {
      w.workers[i] = IDLE
      return
    }
    if (!isMine) w.bad = TERMINAL.has(row.state) ? 'a job left a terminal state' : 'a lost attempt moved the job'
    if (!this.#guards.endIsSynchronous) w.disk ??= { ...row }
    else w.disk = undefined
    row.state = end
    w.workers[i] = this.#world.workers[i].at === 'spoke' ? IDLE : { ...w.workers[i], at: 'ended', end }
  }

  #record(w: World, i: 0 | 1, then: 'runs' | 'again'): void {
    const row = w.row as RowState
    const isMine = this.#isMine(i, row)
    if (!isMine && this.#guards.outputIsFenced) {
      w.workers[i] = IDLE
      return
    }
    if (!isMine) w.bad = 'output of a lost attempt was recorded'
    // With numbered writes, a repeated write has no effect; without them it counts again.
    const isRepeat = this.#world.workers[i].at === 'again'
    if (row.output === 0 || (isRepeat && !this.#guards.writesAreNumbered)) row.output++
    w.workers[i] = { ...w.workers[i], at: then }
  }

  /** Returns the job to the queue, or cancels it if a cancel was requested. */
  #return(w: World, to: 'queued' | 'scheduled'): void {
    const row = w.row as RowState
    if (TERMINAL.has(row.state)) w.bad = 'a job left a terminal state'
    w.startsLeft = Math.min(2, w.startsLeft + 1)
    row.state = row.cancel && this.#guards.cancelBeatsReturn ? 'cancelled' : to
    w.disk = undefined
  }

  *#leases(row: RowState) {
    yield* this.#renewals(row)
    if (row.state !== 'in_progress') return
    if (row.lease && row.owner === 'dead')
      yield this.#own('lease expires', (w) => {
        ;(w.row as RowState).lease = false
      })
    if (row.lease && row.owner !== 'dead' && this.#mayFail) {
      const owner = this.#world.workers[row.owner]
      if (owner.at === 'runs' && owner.attempt === row.attempt && !owner.isFrozen) {
        yield this.#fault('lease expires under a frozen owner', (w) => {
          ;(w.row as RowState).lease = false
          w.workers[row.owner as 0 | 1] = { ...owner, isFrozen: true }
        })
      }
      yield this.#fault('lease expires under a live owner', (w) => this.#lapse(w))
      yield this.#fault('the store is away', (w) => {
        this.#lapse(w)
        w.isUnsettled = true
      })
    }
    if (!row.lease && row.owner !== 'dead') {
      yield this.#own('owner renews', (w) => {
        ;(w.row as RowState).lease = true
        w.isUnsettled = false
      })
    }
    if (this.#world.isUnsettled && row.owner === 'dead')
      yield this.#own('settled', (w) => {
        w.isUnsettled = false
      })
  }

  /** Late lease renewals by workers that are alive, but have lost the job because their lease had expired. */
  *#renewals(row: RowState) {
    for (const i of [0, 1] as const) {
      if (!row.lostBy.includes(`${i}`) || TERMINAL.has(row.state)) continue
      yield this.#own(`w${i} renews its lease late`, (w) => {
        const job = w.row as RowState
        const rest = job.lostBy.replaceAll(`${i}`, this.#guards.lapsesAreSpared ? '' : 'r')
        job.crashes -= job.lostBy.length - rest.length
        job.lostBy = rest
      })
    }
  }

  #lapse(w: World): void {
    const row = w.row as RowState
    row.lease = false
    if (!this.#guards.runsEndWithLease || row.owner === 'dead') return
    const worker = w.workers[row.owner]
    const isRunning = worker.at === 'runs' || worker.at === 'again'
    if (isRunning && worker.attempt === row.attempt) w.workers[row.owner] = { ...worker, at: 'lapsed' }
  }

  *#reaper(row: RowState) {
    const { view, isLate, isUnsettled } = this.#world
    if (!this.#guards.reaperRuns) return
    const isExpired = !row.lease || !this.#guards.reapNeedsExpiredLease
    const mayReap = row.state === 'in_progress' && !(isUnsettled && this.#guards.reaperWaitsAfterOutage)
    if (mayReap && isExpired && !view) {
      yield this.#own('reaper reads', (w) => look(w, 'reap', row.attempt))
    }
    if (view?.of === 'reap') {
      const holds = mayReap && isExpired && row.attempt === view.attempt
      yield this.#own('reaper moves', (w) => {
        w.view = undefined
        if (holds || !this.#guards.reapIsFenced) this.#reap(w)
      })
    }
    if (row.state !== 'in_progress') return
    if (row.cancel && this.#guards.reaperForcesCancel)
      yield this.#own('reaper forces the cancel', (w) => move(w, 'cancelled'))
    if (isLate && this.#guards.reaperEndsOverdue)
      yield this.#own('reaper ends what is overdue', (w) => move(w, 'failed'))
  }

  #reap(w: World): void {
    const row = w.row as RowState
    if (TERMINAL.has(row.state)) w.bad = 'a job left a terminal state'
    else if (row.state !== 'in_progress' || row.lease) w.bad = 'a job was taken from a live owner'
    else if (w.isUnsettled && row.owner !== 'dead') w.bad = 'an outage was treated as the death of a worker'
    row.crashes++
    row.lostBy += row.owner === 'dead' ? 'd' : `${row.owner}`
    const isPoison = row.crashes >= CRASHES_MAX && !w.isLate && !row.cancel
    if (isPoison && row.lostBy.includes('r')) w.bad = 'a lapse was counted as a crash'
    if (w.isLate) move(w, 'failed')
    else if (row.crashes < CRASHES_MAX || row.cancel) this.#return(w, 'queued')
    else if (this.#guards.poisonFails) move(w, 'failed')
    else w.bad = 'a job that kills its workers runs on'
  }

  *#sweeps(row: RowState) {
    const { view, isLate } = this.#world
    if (!isLate) {
      const isHung = this.#world.workers.some(({ at, attempt }) => at === 'hung' && attempt === row.attempt)
      const passes = (w: World) => {
        w.isLate = true
      }
      // A run that hangs must be stopped by its deadline. If the job has a cancel request, then the cancel may stop the run earlier, so progress
      // must not depend on the deadline.
      if (isHung && !row.cancel) yield this.#own('deadline passes', passes)
      else yield this.#help('deadline passes', passes)
    }
    if (!view && isLate && isWaiting(row) && this.#guards.expirySweeps) {
      yield this.#own('expiry reads', (w) => look(w, 'expire', 0))
    }
    if (view?.of === 'expire') {
      yield this.#own('expiry moves', (w) => {
        w.view = undefined
        if (isWaiting(row)) move(w, 'expired')
        else if (!this.#guards.expireNeedsWaiting) w.bad = 'a job expired that did not wait'
      })
    }
    if (!view && row.state === 'scheduled' && this.#guards.dueSweeps) {
      yield this.#own('due reads', (w) => look(w, 'due', 0))
    }
    if (view?.of === 'due') {
      yield this.#own('due moves', (w) => {
        w.view = undefined
        if (row.state === 'scheduled') (w.row as RowState).state = 'queued'
        else if (!this.#guards.dueNeedsScheduled) w.bad = 'a job became due that was not scheduled'
      })
    }
  }

  *#caller(row: RowState) {
    const { view, wasCancelled } = this.#world
    if (view?.of === 'cancel') {
      yield this.#own('cancel moves', (w) => {
        w.view = undefined
        if (isWaiting(row)) move(w, 'cancelled')
        else w.bad = 'a cancel ended a job that did not wait'
      })
    }
    if (wasCancelled || TERMINAL.has(row.state)) return
    if (this.#guards.cancelNeedsWaiting) yield this.#help('caller cancels', (w) => cancel(w))
    else if (!view && isWaiting(row)) yield this.#help('cancel reads', (w) => look(w, 'cancel', 0))
  }

  *#follower(row: RowState) {
    const { shown } = this.#world
    // Other connections read only committed rows, so a row that is not on disk yet is hidden.
    const isOnDisk = this.#world.disk === undefined
    if (this.#guards.followersReadStore && TERMINAL.has(row.state) && shown === '' && isOnDisk) {
      yield this.#own('follower polls the store', (w) => show(w, row.state))
    }
  }

  *#database() {
    const { disk } = this.#world
    if (!disk) return
    yield this.#own('database writes to disk', (w) => {
      w.disk = undefined
    })
    if (!this.#mayFail) return
    yield this.#fault('database crashes', (w) => {
      w.row = { ...disk }
      w.disk = undefined
      w.startsLeft = Math.min(2, w.startsLeft + 1)
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
  return {
    ...world,
    row: world.row && { ...world.row },
    workers: [world.workers[0], world.workers[1]],
  }
}

function newRow(): RowState {
  return {
    state: 'queued',
    attempt: 0,
    top: 0,
    owner: 'dead',
    lease: false,
    cancel: false,
    crashes: 0,
    lostBy: '',
    tries: 0,
    output: 0,
  }
}

/** Moves the job to a final state by a participant other than its worker. */
function move(w: World, to: JobState): void {
  const row = w.row as RowState
  if (TERMINAL.has(row.state)) w.bad = 'a job left a terminal state'
  row.state = to
  w.disk = undefined
}

/** Records that a sweep or a caller has read the row. The write is a later step and is based on this reading. */
function look(w: World, of: 'reap' | 'expire' | 'due' | 'cancel', attempt: number): void {
  if (of === 'cancel') w.wasCancelled = true
  w.view = { of, attempt }
}

function cancel(w: World): void {
  const row = w.row as RowState
  w.wasCancelled = true
  if (isWaiting(row)) move(w, 'cancelled')
  else row.cancel = true
}

/** The process of a worker dies and loses its memory. A record that the worker has not acknowledged is delivered again. */
function crash(w: World, i: 0 | 1): void {
  const worker = w.workers[i]
  if (worker.at === 'holds' && worker.attempt === 0) w.records = Math.min(RECORDS_MAX, w.records + 1)
  w.workers[i] = IDLE
  if (w.row?.owner === i) w.row.owner = 'dead'
  if (w.row) w.row.lostBy = w.row.lostBy.replaceAll(`${i}`, 'd')
}

function show(w: World, end: JobState | ''): void {
  if (w.shown !== '' && w.shown !== end) w.bad = 'the follower saw two ends'
  w.shown = end
}
