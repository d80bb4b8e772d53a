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
  /** Something is served by it, so that it should have a worker. */
  readonly isNeeded: boolean
}

/** What an ingress knows of the fleet at one moment. */
export interface FleetFacts {
  readonly broker: { readonly name: string; readonly isReachable: boolean }
  /** Undefined in a deployment without one. */
  readonly store: { readonly name: string; readonly isReachable: boolean } | undefined
  readonly pools: readonly PoolFacts[]
  readonly paused: readonly { readonly what: 'model' | 'pool'; readonly id: string }[]
  /** Models whose servers all fail, by the workers that say so. */
  readonly failing: readonly { readonly model: string; readonly workers: number }[]
  /** Records that no worker could run, of the newest; undefined while that is not known. */
  readonly deadLetters: { readonly count: number; readonly hasMore: boolean } | undefined
}

/** What is wrong with the fleet now and what to do about it, the worst first; one finding that all is well where nothing is. */
export function fleetFindings(facts: FleetFacts): readonly Finding[] {
  const { broker, store, pools, paused, failing, deadLetters } = facts
  const findings = [
    ...(broker.isReachable ? [] : [away('broker', broker.name, 'Start it, or mend KAFKA_BROKERS.')]),
    ...(store && !store.isReachable ? [away('store', store.name, 'Start it, or mend DATABASE_URL.')] : []),
    ...failing.map(failingFinding),
    ...pools.flatMap(poolFinding),
    ...paused.map(({ what, id }) =>
      warned(
        'pause',
        `The ${what} '${id}' is paused: nothing of it is started.`,
        `Start it again: npx sluice resume ${id}`,
      ),
    ),
    ...(deadLetters && deadLetters.count > 0 ? [deadFinding(deadLetters)] : []),
  ]
  if (findings.length > 0) return findings.toSorted((a, b) => Number(a.status !== 'fail') - Number(b.status !== 'fail'))
  const workers = pools.reduce((sum, pool) => sum + pool.workers, 0)
  return [ok('fleet', `${workers} ${workers === 1 ? 'worker' : 'workers'}, nothing is stuck`)]
}

function away(check: string, name: string, fix: string): Finding {
  return failed(check, `The ${check} (${name}) cannot be reached, so that no new work is taken.`, fix)
}

function failingFinding({ model, workers }: FleetFacts['failing'][number]): Finding {
  const who = workers === 1 ? 'A worker' : `${workers} workers`
  const message = `The upstream of the model '${model}' keeps failing. ${who} tried it in vain, and its calls are refused for a while.`
  return failed('upstream', message, 'Look at that server, and at the address and the key of the model in models.yaml.')
}

function poolFinding({ id, workers, slots, free, waiting, oldestSeconds = 0, isNeeded }: PoolFacts): Finding[] {
  const start = `Start one: node services/main.js ${id}`
  const waits = waiting === 1 ? '1 job waits for it' : `${waiting.toLocaleString('en')} jobs wait for it`
  if (workers === 0 && waiting > 0) return [failed('pool', `No worker works for the pool ${id}, and ${waits}.`, start)]
  if (workers === 0) return isNeeded ? [warned('pool', `No worker works for the pool ${id}.`, start)] : []
  if (slots === 0) {
    const fix = `Start another, or let one work again: npx sluice drain WORKER --undo`
    return [warned('pool', `Every worker of the pool ${id} is being drained.`, fix)]
  }
  if (oldestSeconds <= LONG_WAIT || free > 0) return []
  const message = `The pool ${id} is full: all ${slots} slots are taken, ${waits}, and the oldest since ${Math.floor(oldestSeconds)} s.`
  return [warned('pool', message, 'Start more workers, or raise its slots where the machine has room.')]
}

function deadFinding({ count, hasMore }: NonNullable<FleetFacts['deadLetters']>): Finding {
  const what =
    count === 1 && !hasMore ? '1 record is' : `${count.toLocaleString('en')}${hasMore ? ' or more' : ''} records are`
  const fix =
    'npx sluice dead-letters says why; dead-letters redrive puts them back, dead-letters discard ID has one shown no more, as the console does.'
  return warned('dead', `${what} among the dead letters: no worker could run what they ask for.`, fix)
}
