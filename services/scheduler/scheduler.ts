import { ConfigError } from '#shared/config/config.ts'
import { newId } from '#shared/id.ts'
import { sweepBlobs } from '#shared/jobs/durable/blobs.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { Presence } from '#shared/jobs/presence.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { PURGE_LEASE, REAPER_LEASE, type Store } from '#shared/store/store.ts'
import { Backlog } from './backlog.ts'
import { Loop } from './loop.ts'
import { purge } from './purge.ts'
import { isClaimed, Republisher } from './republish.ts'
import { expire, reap, type SweepContext, startDue } from './sweeps.ts'
import { webhookKey } from './webhook-secret.ts'
import { WebhookSender } from './webhooks.ts'

const START_DUE_MS = 200
const WEBHOOKS_MS = 500
const SECOND_MS = 1_000
const BACKLOG_MS = 5_000
const PURGE_MS = 60_000
const BLOBS_MS = 600_000

const REAPER_LEASE_MS_MAX = 5_000
const REAP_MS_MAX = 1_000

/**
 * Starts a scheduler: what durable jobs need done when nobody else is there to do it (docs/design.md, Sweeps).
 *
 * It starts what is due, publishes again what the broker lost, ends what waited or ran too long, takes jobs from lost
 * workers, deletes what is kept no longer, and delivers webhooks. Any number may run: each move is guarded in the store,
 * and only one reaps at a time.
 *
 * @throws ConfigError without a store
 */
export async function startScheduler(ports: Ports): Promise<Service> {
  const { broker, config, log, metrics, store, version } = ports
  if (!store) throw new ConfigError(['DATABASE_URL: needed by the scheduler'])
  const boot = newId('sch_', 16)
  const key = await webhookKey(config)
  const presence = await openPresence(ports, boot)
  const context = { store, broker, log, metrics, dispatcher: new Dispatcher(broker, log) }
  const backlog = new Backlog(store, broker, (of) => isClaimed(presence, of))
  backlog.showIn(metrics, ports.models.models)
  const policy = { allowPrivate: config.webhookAllowPrivate }
  const sender = new WebhookSender({ store, log, metrics, version, key, policy })
  const republisher = new Republisher(context, presence, backlog)
  const keeping = [...keepJobs(context, boot, config.jobLeaseMs), ...keepBroker(context, backlog, republisher)]
  const loops = [...keeping, ...cleanUp(context, ports, boot), deliver(context, sender)]
  const drain = async (signal: AbortSignal) => {
    await Promise.all(loops.map((loop) => loop.stop()))
    await sender.drain(signal)
    await release(context, boot)
  }
  return {
    name: 'scheduler',
    problems: () => problemsOf(store, loops),
    drain,
    async close() {
      await drain(AbortSignal.abort())
      await presence.close()
    },
  }
}

async function openPresence({ broker, config, log, version }: Ports, boot: string): Promise<Presence> {
  const none = () => 0
  const self = { boot, role: 'scheduler', version, slots: none, running: none, isDraining: () => false } as const
  return await Presence.open({ broker, log, self, listener: {}, lostMs: config.workerLostMs })
}

/** Moves that only time brings about. */
function keepJobs(context: SweepContext, boot: string, jobLeaseMs: number): Loop[] {
  // Shorter than the silence that a worker may keep between two renewals, or an outage would look like their death.
  const leaseMs = Math.min(REAPER_LEASE_MS_MAX, Math.floor(jobLeaseMs / 2))
  const reapMs = Math.min(REAP_MS_MAX, leaseMs / 4)
  const { log, store } = context
  const canRun = () => store.isReachable
  return [
    new Loop({ name: 'due', intervalMs: START_DUE_MS, log, canRun: canPublish(context), run: () => startDue(context) }),
    new Loop({ name: 'expire', intervalMs: SECOND_MS, log, canRun, run: () => expire(context) }),
    new Loop({ name: 'reap', intervalMs: reapMs, log, canRun, run: () => reap(context, boot, leaseMs) }),
  ]
}

/** The broker may forget; the store does not. */
function keepBroker(context: SweepContext, backlog: Backlog, republisher: Republisher): Loop[] {
  const { log, store } = context
  const republish = () => republisher.run()
  return [
    new Loop({
      name: 'backlog',
      intervalMs: BACKLOG_MS,
      log,
      canRun: () => store.isReachable,
      run: () => backlog.read(),
    }),
    new Loop({ name: 'republish', intervalMs: SECOND_MS, log, canRun: canPublish(context), run: republish }),
  ]
}

function cleanUp(context: SweepContext, { blobs, config }: Ports, boot: string): Loop[] {
  const { log, store } = context
  const canRun = () => store.isReachable
  const sweep = async () => {
    const count = await sweepBlobs(blobs, store, config.requestTimeoutMs)
    if (count > 0) log.info({ count }, 'old blobs deleted')
  }
  return [
    new Loop({
      name: 'purge',
      intervalMs: PURGE_MS,
      log,
      canRun,
      run: (stopped) => purge(context, blobs, boot, stopped),
    }),
    new Loop({ name: 'blobs', intervalMs: BLOBS_MS, log, canRun, run: sweep }),
  ]
}

function deliver({ log, store }: SweepContext, sender: WebhookSender): Loop {
  const run = (stopped: AbortSignal) => sender.turn(stopped)
  return new Loop({ name: 'webhooks', intervalMs: WEBHOOKS_MS, log, canRun: () => store.isReachable, run })
}

/** Jobs that cannot be published are better left scheduled: then they need not be found again. */
function canPublish({ store, broker }: SweepContext): () => boolean {
  return () => store.isReachable && broker.isReachable
}

function problemsOf(store: Store, loops: readonly Loop[]): string[] {
  if (!store.isReachable) return [`The job store (${store.name}) cannot be reached.`]
  return loops.flatMap(({ problem }) => problem ?? [])
}

/** Lets another scheduler begin at once to wait out the leases, and to purge. */
async function release({ log, store }: SweepContext, boot: string): Promise<void> {
  for (const lease of [REAPER_LEASE, PURGE_LEASE]) {
    await store.releaseLease(lease, boot).catch((error: unknown) => {
      log.info({ err: error, lease }, 'lease not released; it runs out')
    })
  }
}
