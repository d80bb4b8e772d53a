import { durationText } from '#shared/lib/duration.ts'
import { type CallFacts, callFindings } from './calls.ts'
import { type Finding, failed, ok, warned } from './check.ts'

/** Minimum waiting time of the oldest job, in seconds, at which {@link longWait} reports missing capacity. */
const LONG_WAIT = 60

export interface PoolFacts {
  readonly id: string
  readonly workers: number
  readonly slots: number
  readonly free: number
  readonly waiting: number
  /** Waiting time of the oldest call or job of normal priority, in seconds. */
  readonly oldestSeconds: number | undefined
  /** Models that run as many concurrent calls as their limit `slots` allows, while further calls wait. */
  readonly fullModels: readonly { readonly model: string; readonly slots: number }[]
  /** Whether a configured model or feature needs a worker of this pool. */
  readonly isNeeded: boolean
}

export interface FleetFacts {
  readonly broker: { readonly name: string; readonly isReachable: boolean; readonly missing?: readonly string[] }
  readonly store: { readonly name: string; readonly isReachable: boolean; readonly isFull: boolean } | undefined
  readonly pools: readonly PoolFacts[]
  /** Number of unfinished durable jobs, and DURABLE_JOBS_MAX. Undefined until both are known. */
  readonly durable: { readonly count: number; readonly max: number } | undefined
  readonly paused: readonly { readonly target: 'model' | 'pool'; readonly id: string }[]
  readonly calls: CallFacts
  /** Number of budgets that cannot have an effect, because no model has a price. 0 if at least one model has a price. */
  readonly uselessBudgets: number
  readonly deadLetters: { readonly count: number; readonly hasMore: boolean } | undefined
}

/**
 * Returns the current problems of the fleet with their remedies, failures first. If there are none, then one finding
 * `ok` is returned. The API, `sluice doctor`, `sluice top` and the console all show these findings.
 */
export function fleetFindings(facts: FleetFacts, nowMs = Date.now()): readonly Finding[] {
  const { broker, store, pools, durable, paused, calls, uselessBudgets, deadLetters } = facts
  const findings = [
    ...(broker.isReachable ? [] : [brokerAway(broker.name)]),
    ...(broker.missing?.length ? [topicsMissing(broker.missing)] : []),
    ...(store && !store.isReachable ? [storeAway(store.name)] : []),
    ...(store?.isFull ? [storeFull(store.name)] : []),
    ...(durable ? roomFinding(durable) : []),
    ...callFindings(calls, nowMs),
    ...pools.flatMap(poolFinding),
    ...paused.map(({ target, id }) =>
      warned(
        'pause',
        `The ${target} '${id}' is paused: its jobs are not started.`,
        `To resume: npx sluice resume ${target} ${id}`,
      ),
    ),
    ...(uselessBudgets > 0 ? [budgetsFinding(uselessBudgets)] : []),
    ...(deadLetters && deadLetters.count > 0 ? [deadFinding(deadLetters)] : []),
  ]
  const workers = pools.reduce((sum, pool) => sum + pool.workers, 0)
  return sorted(findings, ok('fleet', `${workers} ${workers === 1 ? 'worker' : 'workers'}, no problems`))
}

/** Remedy of a failing model for callers, who cannot repair its server. If the cause already advises another model, then the advice is not repeated. */
function callerRemedy({ cause = '' }: Finding): string {
  const operator = 'Only an operator can repair the upstream server.'
  return /use another model/i.test(cause) ? operator : `Use another model until the alert ends. ${operator}`
}

/** Returns the findings that the keys of one project may read, namely those about the project's calls, their models and its budgets. */
export function projectFindings(calls: CallFacts, nowMs = Date.now()): readonly Finding[] {
  const found = callFindings(calls, nowMs).map((finding) =>
    finding.check === 'upstream' ? { ...finding, remediation: callerRemedy(finding) } : finding,
  )
  return sorted(found, ok('calls', 'no problems'))
}

function sorted(findings: readonly Finding[], none: Finding): readonly Finding[] {
  if (findings.length === 0) return [none]
  return findings.toSorted((a, b) => Number(a.status !== 'fail') - Number(b.status !== 'fail'))
}

function brokerAway(name: string): Finding {
  const message = `The broker (${name}) is unreachable: new calls are refused, and durable jobs wait until the broker is back.`
  return failed('broker', message, 'Start the broker, or correct KAFKA_BROKERS.')
}

function topicsMissing(topics: readonly string[]): Finding {
  const message = `Kafka lacks the topic ${topics.join(', ')}, and the service could not create it: calls that need it are refused.`
  return failed(
    'broker',
    message,
    'Create the topic, or allow the service to create topics. The warning in the log of the service has the command.',
  )
}

function storeAway(name: string): Finding {
  const message = `The store (${name}) is unreachable: new durable jobs are refused and running ones are suspended; synchronous calls still work.`
  return failed('store', message, 'Start the database, or correct DATABASE_URL.')
}

function storeFull(name: string): Finding {
  const message = `The disk of the store (${name}) is full: new durable jobs are refused and running ones cannot end; synchronous calls still work.`
  return failed(
    'store',
    message,
    'Free space on the disk of the store, or give the database a larger disk. No restart is needed.',
  )
}

/**
 * Warns when the number of durable jobs reaches half of DURABLE_JOBS_MAX. A project may have at most as many pending jobs as the remaining capacity.
 * If one project has all pending jobs, then it reaches this limit at half of the maximum, and its new jobs are refused.
 */
function roomFinding({ count, max }: NonNullable<FleetFacts['durable']>): Finding[] {
  if (count < max / 2) return []
  const remediation =
    '`npx sluice jobs --all-projects --status queued` lists the queued jobs with their projects. Start more workers, cancel jobs, or raise DURABLE_JOBS_MAX.'
  const [has, most] = [count.toLocaleString('en'), max.toLocaleString('en')]
  if (count >= max)
    return [
      failed('room', `The maximum of ${most} durable jobs is reached: new durable jobs are refused.`, remediation),
    ]
  const message = `${has} of at most ${most} durable jobs are pending. A project with ${(max - count).toLocaleString('en')} or more pending jobs cannot submit further jobs.`
  return [warned('room', message, remediation)]
}

function poolFinding(pool: PoolFacts): Finding[] {
  const { id, workers, slots, waiting, isNeeded } = pool
  const start = `Start a worker: node services/main.js ${id}`
  const queued = waiting === 1 ? '1 job queued' : `${waiting.toLocaleString('en')} jobs queued`
  if (workers === 0 && waiting > 0) return [failed('pool', `The pool ${id} has no worker: ${queued}.`, start)]
  if (workers === 0) return isNeeded ? [warned('pool', `The pool ${id} has no worker.`, start)] : []
  if (slots === 0) {
    const remediation = `Start another worker, or undo a drain: npx sluice drain WORKER --undo`
    return [warned('pool', `All workers of the pool ${id} are draining.`, remediation)]
  }
  return longWait(pool, queued)
}

/**
 * Reports jobs that wait too long for a slot or a permit. If slots and permits are free, then a limit such as that of a tenant delays the job on
 * purpose, so it is not reported.
 */
function longWait({ id, slots, free, oldestSeconds = 0, fullModels }: PoolFacts, queued: string): Finding[] {
  if (oldestSeconds <= LONG_WAIT || (free > 0 && fullModels.length === 0)) return []
  const remediation = 'Start more workers, or raise the slots of the pool if the machine has capacity.'
  const backlog = `${queued}, oldest ${durationText(oldestSeconds)}`
  if (free === 0) return [warned('pool', `The pool ${id} is at capacity (${slots} slots): ${backlog}.`, remediation)]
  const models = fullModels.map(({ model, slots: own }) => `'${model}' (${own} of ${own} concurrent calls)`).join(', ')
  const message = `${models} ${fullModels.length === 1 ? 'is' : 'are'} at capacity in the pool ${id}: ${backlog}. The free slots of the pool can run only other models.`
  return [warned('pool', message, remediation)]
}

function budgetsFinding(count: number): Finding {
  const budgets = count === 1 ? '1 budget has' : `${count.toLocaleString('en')} budgets have`
  const message = `${budgets} no effect: no model has a price, so each call costs $0.`
  const remediation =
    'Set `price` of the models in models.yaml. With `price: published`, a model gets the price that its provider publishes.'
  return warned('budgets', message, remediation)
}

function deadFinding({ count, hasMore }: NonNullable<FleetFacts['deadLetters']>): Finding {
  const what =
    count === 1 && !hasMore ? '1 dead letter' : `${count.toLocaleString('en')}${hasMore ? ' or more' : ''} dead letters`
  const remediation =
    '`npx sluice dead-letters` shows the reasons. To requeue dead letters: `npx sluice dead-letters redrive`. To delete one: `npx sluice dead-letters discard ID`. The console offers both.'
  const which = count === 1 && !hasMore ? 'it' : 'them'
  return warned('dead', `${what}: no worker could run ${which}.`, remediation)
}
