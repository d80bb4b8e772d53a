import type { FairQueueItem } from '#shared/jobs/attached/fair-queue.ts'
import { TenantDispatcher } from '#shared/jobs/attached/tenant-dispatcher.ts'
import type { Work } from '#shared/jobs/peers.ts'

const OPEN: Work = { kind: 'generate', model: 'open' }
const BUSY: Work = { kind: 'generate', model: 'busy' }
/** Places of the model that is busy. */
const PLACES = 1
const ROUNDS = 2_000

/** What one call costs an ingress in which calls of so many tenants wait, in microseconds of its CPU. */
export interface CallCost {
  readonly tenants: number
  /** It enters, another one gets its turn and ends. */
  readonly turn: number
  /** The same while all others wait for a model that has no place. */
  readonly beside: number
  /** How many are before it, which is asked of each call. */
  readonly ahead: number
  /** The same where calls of each tenant have been told to come back. */
  readonly expected: number
  /** It comes back from a worker, and is the next. */
  readonly again: number
}

/** Measures the turns of attached calls, in this process. */
export function measureCalls(tenants: number): CallCost {
  const turns = filled(tenants, OPEN)
  const behind = filled(tenants, BUSY)
  const reserved = new Map(Array.from({ length: tenants }, (_, index) => [tenantOf(index), 1]))
  return {
    tenants,
    turn: cpuOf((index) => one(turns, callOf(tenantOf(index % tenants), OPEN))),
    beside: cpuOf((index) => one(behind, callOf(`new-${index}`, OPEN))),
    ahead: cpuOf(() => turns.ahead('new', OPEN)),
    expected: cpuOf(() => turns.ahead('new', OPEN, reserved)),
    again: cpuOf((index) => {
      const job = callOf(`new-${index}`, OPEN)
      turns.enterFirst(job)
      if (turns.next() !== job) throw new Error('a job that comes again is not the next')
      turns.leave(job)
    }),
  }
}

/** One call of each tenant waits, and of the first of them as many more: nothing is cheap because there is little of it. */
function filled(tenants: number, work: Work): TenantDispatcher<FairQueueItem> {
  const turns = new TenantDispatcher<FairQueueItem>({
    prefetch: () => 1,
    slots: () => PLACES,
    capacityOf: ({ model }) => (model === BUSY.model ? PLACES : undefined),
    waitingElsewhere: () => new Map(),
    partOf: () => 1,
    ingressesOf: () => 1,
    isIdle: () => false,
  })
  if (work === BUSY) fill(turns)
  for (let index = 0; index < tenants; index++) turns.enter(callOf(tenantOf(index), work))
  for (let index = 0; index < 1_000; index++) turns.enter(callOf(tenantOf(0), work))
  return turns
}

/** Takes all places of the model that is busy. */
function fill(turns: TenantDispatcher<FairQueueItem>): void {
  for (;;) {
    turns.enter(callOf('first', BUSY))
    const job = turns.next()
    if (!job) return
    turns.start(job)
  }
}

function one(turns: TenantDispatcher<FairQueueItem>, job: FairQueueItem): void {
  turns.enter(job)
  const next = turns.next()
  if (!next) throw new Error('nobody has a turn')
  turns.leave(next)
}

function callOf(tenant: string, work: Work): FairQueueItem {
  return { envelope: { ...work, tenant } }
}

function tenantOf(index: number): string {
  return `tenant-${index}`
}

/** @returns Microseconds of one run, the median of three rounds, of code that is warm */
function cpuOf(run: (index: number) => void): number {
  const costs: number[] = []
  for (let round = 0; round < 4; round++) {
    const startedAt = process.cpuUsage()
    for (let index = 0; index < ROUNDS; index++) run(index)
    const { user, system } = process.cpuUsage(startedAt)
    if (round > 0) costs.push((user + system) / ROUNDS)
  }
  return costs.toSorted((a, b) => a - b)[1] ?? 0
}
