import { type Finding, failed, ok, warned } from './check.ts'

/** Seconds for which a job may wait before that is worth telling. */
const LONG_WAIT = 60

/** A pool of workers, as an ingress sees it. */
export interface PoolFacts {
  readonly id: string
  readonly workers: number
  readonly slots: number
  readonly free: number
  /** Calls and jobs that wait for it, in the queue and in the store. */
  readonly waiting: number
  readonly oldestSeconds: number | undefined
  /** Models of which some worker runs as many jobs as it may, while others wait. */
  readonly fullModels: readonly string[]
  /** Something is served by it, so that it should have a worker. */
  readonly isNeeded: boolean
}

/** What an ingress knows of the fleet at one moment. */
export interface FleetFacts {
  readonly broker: { readonly name: string; readonly isReachable: boolean; readonly missing?: readonly string[] }
  /** Undefined in a deployment without one. */
  readonly store: { readonly name: string; readonly isReachable: boolean; readonly isFull: boolean } | undefined
  readonly pools: readonly PoolFacts[]
  /** Durable jobs that wait or run, and how many may (DURABLE_JOBS_MAX); undefined while that is not known. */
  readonly durable: { readonly count: number; readonly max: number } | undefined
  readonly paused: readonly { readonly what: 'model' | 'pool'; readonly id: string }[]
  /** Models whose servers all fail, by the workers that say so. */
  readonly failing: readonly { readonly model: string; readonly workers: number }[]
  /** Records that no worker could run, of the newest; undefined while that is not known. */
  readonly deadLetters: { readonly count: number; readonly hasMore: boolean } | undefined
}

/** What is wrong with the fleet now and what to do about it, the worst first; one finding that all is well where nothing is. */
export function fleetFindings(facts: FleetFacts): readonly Finding[] {
  const { broker, store, pools, durable, paused, failing, deadLetters } = facts
  const findings = [
    ...(broker.isReachable ? [] : [brokerAway(broker.name)]),
    ...(broker.missing?.length ? [topicsMissing(broker.missing)] : []),
    ...(store && !store.isReachable ? [storeAway(store.name)] : []),
    ...(store?.isFull ? [storeFull(store.name)] : []),
    ...(durable ? roomFinding(durable) : []),
    ...failing.map(failingFinding),
    ...pools.flatMap(poolFinding),
    ...paused.map(({ what, id }) =>
      warned(
        'pause',
        `The ${what} '${id}' is paused: nothing of it is started.`,
        `Start it again: npx sluice resume ${what} ${id}`,
      ),
    ),
    ...(deadLetters && deadLetters.count > 0 ? [deadFinding(deadLetters)] : []),
  ]
  if (findings.length > 0) return findings.toSorted((a, b) => Number(a.status !== 'fail') - Number(b.status !== 'fail'))
  const workers = pools.reduce((sum, pool) => sum + pool.workers, 0)
  return [ok('fleet', `${workers} ${workers === 1 ? 'worker' : 'workers'}, nothing is stuck`)]
}

function brokerAway(name: string): Finding {
  const message = `The broker (${name}) cannot be reached: new calls are refused, and durable jobs wait until it is back.`
  return failed('broker', message, 'Start it, or correct KAFKA_BROKERS.')
}

function topicsMissing(topics: readonly string[]): Finding {
  const message = `Kafka has no topic ${topics.join(', ')}, and the service could not make what is missing: its calls are refused.`
  return failed('broker', message, 'Make the topic, or allow the service to: the warning in its log has the command.')
}

function storeAway(name: string): Finding {
  const message = `The store (${name}) cannot be reached: durable jobs are refused and stand still; plain calls go on.`
  return failed('store', message, 'Start it, or mend DATABASE_URL.')
}

function storeFull(name: string): Finding {
  const message = `The disk of the store (${name}) is full: durable jobs are refused, and those that run cannot end; plain calls go on.`
  return failed('store', message, 'Make room on that disk, or give the database a larger one: nothing needs a restart.')
}

/** A project may have as many as are free for others, so one alone is refused when half of the places are taken. */
function roomFinding({ count, max }: NonNullable<FleetFacts['durable']>): Finding[] {
  if (count < max / 2) return []
  const fix =
    '`npx sluice jobs --all-projects --status queued` says whose they are. Start more workers, cancel what nobody needs, or raise DURABLE_JOBS_MAX.'
  const [has, most] = [count.toLocaleString('en'), max.toLocaleString('en')]
  if (count >= max) return [failed('room', `All ${most} places for durable jobs are taken: new ones are refused.`, fix)]
  const message = `${has} of ${most} places for durable jobs are taken: a project that has as many as are free is refused more.`
  return [warned('room', message, fix)]
}

function failingFinding({ model, workers }: FleetFacts['failing'][number]): Finding {
  const who = workers === 1 ? 'A worker' : `${workers} workers`
  const message = `The upstream of the model '${model}' keeps failing. ${who} tried it in vain, and its calls are refused for a while.`
  return failed('upstream', message, 'Look at that server, and at the address and the key of the model in models.yaml.')
}

function poolFinding(pool: PoolFacts): Finding[] {
  const { id, workers, slots, waiting, isNeeded } = pool
  const start = `Start one: node services/main.js ${id}`
  const waits = waiting === 1 ? '1 job waits for it' : `${waiting.toLocaleString('en')} jobs wait for it`
  if (workers === 0 && waiting > 0) return [failed('pool', `No worker works for the pool ${id}, and ${waits}.`, start)]
  if (workers === 0) return isNeeded ? [warned('pool', `No worker works for the pool ${id}.`, start)] : []
  if (slots === 0) {
    const fix = `Start another, or let one work again: npx sluice drain WORKER --undo`
    return [warned('pool', `Every worker of the pool ${id} is being drained.`, fix)]
  }
  return longWait(pool, waits)
}

/** Whoever waits for long where there is room waits for something that is not wrong, such as a limit of its key. */
function longWait({ id, slots, free, oldestSeconds = 0, fullModels }: PoolFacts, waits: string): Finding[] {
  if (oldestSeconds <= LONG_WAIT || (free > 0 && fullModels.length === 0)) return []
  const fix = 'Start more workers, or raise its slots where the machine has room.'
  const since = `${waits}, and the oldest since ${Math.floor(oldestSeconds)} s`
  if (free === 0) return [warned('pool', `The pool ${id} is full: all ${slots} slots are taken, ${since}.`, fix)]
  const which = fullModels.map((model) => `'${model}'`).join(', ')
  const message = `The pool ${id} runs as many jobs as it may of ${which}: ${since}. Free slots are for its other models.`
  return [warned('pool', message, fix)]
}

function deadFinding({ count, hasMore }: NonNullable<FleetFacts['deadLetters']>): Finding {
  const what =
    count === 1 && !hasMore ? '1 record is' : `${count.toLocaleString('en')}${hasMore ? ' or more' : ''} records are`
  const fix =
    '`npx sluice dead-letters` says why. Put them back with `npx sluice dead-letters redrive`, or have one shown no more with `npx sluice dead-letters discard ID`; the console does both.'
  const which = count === 1 && !hasMore ? 'it' : 'them'
  return warned('dead', `${what} among the dead letters: no worker could run ${which}.`, fix)
}
