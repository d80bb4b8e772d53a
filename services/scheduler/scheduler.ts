/*
 * The scheduler: periodic work on durable jobs (docs/internals/design.md, Sweeps). Any number of schedulers may run.
 *
 * 1. Jobs that are due become queued. Records that the broker lost are published again.
 * 2. Jobs that waited or ran too long expire. Jobs of workers whose lease expired are requeued.
 * 3. Ended jobs wake their parents, cancel their children and enter the usage ledger.
 * 4. Expired data is deleted, and so are blobs to which no record in the store refers. Webhooks are delivered.
 *
 * The invariant: every publication by another process is only a hint. If that process crashes before it publishes, then a
 * loop here finds the work in the store. Each task is a `Loop` with its own interval, from 200 ms for due jobs to 10
 * minutes for blobs.
 */

import { setTimeout } from 'node:timers/promises'
import { ConfigError } from '#shared/config/config.ts'
import { Sweeps } from '#shared/jobs/durable/sweeps/sweeps.ts'
import type { Work } from '#shared/jobs/fleet-work.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { untilAligned } from '#shared/lib/aligned-interval.ts'
import { newId } from '#shared/lib/id.ts'
import type { Log } from '#shared/log/log.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import type { StoreView } from '#shared/store/store.ts'
import { enterEnded } from '#shared/usage/enter-ended.ts'
import { HistoryRecorder } from '#shared/usage/history.ts'
import { budgetAlerts } from './budget-alerts.ts'
import { type SharedKey, sharedKeyOf, signingKeys } from './webhook-secret.ts'
import { WebhookSender } from './webhooks.ts'

/** Random deviation from the interval, as a fraction, so that several processes do not run a loop at the same time. */
const JITTER = 0.1

const RUN_MS_MAX = 600_000

const START_DUE_MS = 200
const WEBHOOKS_MS = 500
const SECOND_MS = 1_000
const BACKLOG_MS = 5_000
const PURGE_MS = 60_000
const BUDGETS_MS = 15_000
const BLOBS_MS = 600_000

const REAPER_LEASE_MS_MAX = 5_000
const REAP_MS_MAX = 1_000

/** @throws ConfigError without a store */
export async function startScheduler(ports: Ports): Promise<Service> {
  const { broker, blobs, config, log, metrics, models, store, version } = ports
  if (!store) throw new ConfigError(['DATABASE_URL: must be set for the role scheduler'])
  const boot = newId('sch_', 16)
  const shared = await sharedKeyOf(config)
  if (shared) warnOfShared(log, shared)
  const keys = await ports.openKeys()
  // The root secret, from which the default webhook secrets of projects are derived, is created here. If
  // the key store is not writable, then the start fails.
  await keys.webhookRoot()
  let sweeps: Sweeps | undefined
  const presence = await openPresence(ports, boot, () => sweeps?.waiting ?? [])
  const callMsMax = config.requestTimeoutMs
  const bodies = { keepMs: config.requestBodiesMs, rowsMax: config.requestBodiesMax }
  const requestLog = { keepMs: config.requestLogMs, rowsMax: config.requestLogRowsMax, bodies }
  sweeps = new Sweeps({ store, broker, blobs, log, metrics, models, presence, boot, callMsMax, requestLog })
  const policy = { allowPrivate: config.webhookAllowPrivate }
  const sender = new WebhookSender({ store, log, metrics, version, keysOf: signingKeys(keys, shared), policy })
  const history = new HistoryRecorder({ store: store.history, log })
  const url = config.budgetWebhookUrl
  const addAlerts = url === undefined ? undefined : budgetAlerts({ keys, ledger: store.usage, url })
  const alert = addAlerts && (() => addAlerts(Date.now()))
  const loops = openLoops(ports, store, sweeps, sender, history, alert)
  const drain = async (signal: AbortSignal) => {
    await Promise.all(loops.map((loop) => loop.stop()))
    await sender.drain(signal)
    await sweeps.release()
  }
  return {
    name: 'scheduler',
    problems: () => problemsOf(store, loops),
    drain,
    async close() {
      await drain(AbortSignal.abort())
      await history.close()
      await presence.close()
      await keys.close()
    },
  }
}

function warnOfShared(log: Log, { from }: SharedKey): void {
  const advice = 'give each receiver the secret of its project (sluice webhook-secrets), then delete the shared secret'
  log.warn(
    { from, advice },
    'shared webhook secret in use: each receiver with this secret can forge webhooks of every project',
  )
}

async function openPresence(
  { broker, config, log, version }: Ports,
  boot: string,
  work: () => readonly Work[],
): Promise<Presence> {
  const none = () => 0
  const own = { slots: none, running: none, isDraining: () => false, work }
  const self = { boot, role: 'scheduler', version, ...own } as const
  return await Presence.open({ broker, log, self, listener: {}, lostMs: config.workerLostMs })
}

function openLoops(
  { broker, config, log, metrics, models }: Ports,
  store: StoreView,
  sweeps: Sweeps,
  sender: WebhookSender,
  history: HistoryRecorder,
  alert: (() => Promise<number>) | undefined,
): Loop[] {
  // The reaper is the loop that requeues the jobs of expired leases. After a store outage, the leases of all workers have expired, and running
  // workers need time to renew them. The reaper therefore holds a lease of its own, and waits if that lease has expired. The lease of the reaper
  // is shorter than those of the workers. If an outage has ended the leases of the workers, then it has also ended that of the reaper.
  const leaseMs = Math.min(REAPER_LEASE_MS_MAX, Math.floor(config.jobLeaseMs / 2))
  const reapMs = Math.min(REAP_MS_MAX, leaseMs / 4)
  const canRun = () => store.isReachable
  // Without a broker, due jobs are not moved to the queue. A job that is queued without a broker cannot be published, so it would wait
  // until the loop that republishes lost records finds it.
  const canPublish = () => store.isReachable && broker.isReachable
  const isAlone = config.databaseUrl === undefined
  const common = { log, isAlone, canRun }
  // Options of loops that pause while there is no work. The loop of the reaper does not pause, because each iteration renews the lease of the
  // reaper. A scheduler requeues jobs only after it has had this lease for some time, without interruption.
  const resting = { ...common, rest: (stopped: AbortSignal) => store.untilWork(stopped) }
  return [
    new Loop({ ...resting, name: 'due', intervalMs: START_DUE_MS, canRun: canPublish, run: () => sweeps.startDue() }),
    new Loop({ ...resting, name: 'expire', intervalMs: SECOND_MS, run: () => sweeps.expire() }),
    new Loop({ ...common, name: 'reap', intervalMs: reapMs, run: () => sweeps.reap(leaseMs) }),
    new Loop({ ...resting, name: 'families', intervalMs: SECOND_MS, run: () => sweeps.families() }),
    new Loop({
      ...resting,
      name: 'usage',
      intervalMs: SECOND_MS,
      run: () => enterEnded(store.usage, models, { isLogged: config.isRequestLogOn, history, metrics }),
    }),
    ...(alert ? [new Loop({ ...common, name: 'budgets', intervalMs: BUDGETS_MS, run: alert })] : []),
    new Loop({ ...common, name: 'backlog', intervalMs: BACKLOG_MS, run: () => sweeps.readBacklog() }),
    new Loop({
      ...resting,
      name: 'republish',
      intervalMs: SECOND_MS,
      canRun: canPublish,
      run: () => sweeps.republish(),
    }),
    new Loop({ ...common, name: 'purge', intervalMs: PURGE_MS, run: (stopped) => sweeps.purge(stopped) }),
    new Loop({ ...common, name: 'blobs', intervalMs: BLOBS_MS, run: () => sweeps.sweepBlobs() }),
    new Loop({ ...resting, name: 'webhooks', intervalMs: WEBHOOKS_MS, run: (stopped) => sender.sendDue(stopped) }),
  ]
}

function problemsOf(store: StoreView, loops: readonly Loop[]): string[] {
  if (!store.isReachable) return [`The job store (${store.name}) cannot be reached.`]
  return loops.flatMap(({ problem }) => problem ?? [])
}

interface LoopOptions {
  readonly name: string
  readonly intervalMs: number
  readonly log: Log
  /**
   * Whether no other process runs this loop. If true, then the loop runs at the same moments as the other loops of this process, so that
   * the process wakes rarely.
   */
  readonly isAlone?: boolean
  /** Waits until there may be work, or until the signal aborts. Default: no wait. */
  rest?(stopped: AbortSignal): Promise<void>
  /**
   * False while a dependency is unreachable. Iterations are then skipped without a log entry, because the check of the dependency reports
   * the outage.
   */
  canRun(): boolean
  /**
   * @param stopped Aborts when the loop is stopped. Waits then end, and started work is finished.
   * @returns `true` if there is more to do, so that the next iteration follows at once
   */
  run(stopped: AbortSignal): Promise<unknown>
}

/** Runs iterations one after the other, from its creation until it is stopped. A failed iteration does not prevent the next iteration. */
export class Loop {
  readonly #options: LoopOptions
  readonly #stopped = new AbortController()
  readonly #ended: Promise<void>
  #isFailing = false
  #runStartedAt: number | undefined

  constructor(options: LoopOptions) {
    this.#options = options
    this.#ended = this.#runForEver()
  }

  /** Reason why the loop makes no progress. Undefined if it makes progress. */
  get problem(): string | undefined {
    const hangs = performance.now() - (this.#runStartedAt ?? Infinity) > RUN_MS_MAX
    if (!hangs && !this.#isFailing) return undefined
    return `The scheduler's loop '${this.#options.name}' ${hangs ? 'hangs' : 'fails'}.`
  }

  /** Starts no further iteration and waits for the running iteration. May be called twice. */
  async stop(): Promise<void> {
    this.#stopped.abort()
    await this.#ended
  }

  async #runForEver(): Promise<void> {
    const { signal } = this.#stopped
    while (!signal.aborted) {
      // If the wait fails, then an iteration runs at once, because a superfluous iteration does no harm.
      if (this.#options.rest) await this.#options.rest(signal).catch(() => {})
      const hasMore = await this.#runOnce(signal)
      // An embedded store may answer without yielding, so the loop yields to the event loop at least once.
      await setTimeout(hasMore ? 0 : this.#waitMs, undefined, { signal }).catch(() => {})
    }
  }

  get #waitMs(): number {
    const { intervalMs, isAlone } = this.#options
    return isAlone ? untilAligned(intervalMs) : intervalMs * (1 - JITTER + 2 * JITTER * Math.random())
  }

  async #runOnce(signal: AbortSignal): Promise<boolean> {
    const { name, log } = this.#options
    if (!this.#options.canRun()) return false
    try {
      this.#runStartedAt = performance.now()
      const hasMore = (await this.#options.run(signal)) === true
      if (this.#isFailing) log.info({ loop: name }, 'scheduler loop recovered')
      this.#isFailing = false
      return hasMore
    } catch (error) {
      // A failure is logged once. If a dependency is unreachable, then the check of the dependency reports the outage instead.
      if (!this.#isFailing && this.#options.canRun()) {
        this.#isFailing = true
        log.error({ err: error, loop: name }, 'scheduler loop failed; retrying')
      }
      return false
    } finally {
      this.#runStartedAt = undefined
    }
  }
}
