import { startScheduler } from '#services/scheduler/scheduler.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { Worker, type WorkerDefinition } from '#shared/jobs/worker/worker.ts'
import { newId } from '#shared/lib/id.ts'
import type { Ports } from '#shared/ports.ts'
import type { Store } from '#shared/store/store.ts'
import type { Random } from '../chaos/load/random.ts'
import { memoryBlobs } from '../support/jobs/blobs.ts'
import { openNoKeys, silentLog } from '../support/jobs/jobs.ts'
import { FaultyBroker } from './faults/broker.ts'
import { faultyStore, type Surroundings } from './faults/store.ts'
import type { History } from './history.ts'
import { SimulatedProcess } from './simulated-process.ts'
import type { Witness } from './work.ts'

/** Maximum difference between the clock of a process and the true time. */
const SKEW_MS_MAX = 120_000
const WORKER_LOST_MS = 5_000

type Role = 'ingress' | 'worker' | 'scheduler'

export interface Member {
  readonly role: Role
  readonly process: SimulatedProcess
  /** The broker, with the faults of this process's connection. */
  readonly broker: Broker
  /** The store, with the faults of this process's connection. */
  readonly store: Store
  /** Set while the process is an ingress that serves requests. */
  jobs?: DurableJobs
  /** Set while the process is a worker that takes jobs. */
  pool?: Worker
}

export interface FleetOptions extends Surroundings {
  readonly history: History
  readonly witness: Witness
  readonly random: Random
  readonly broker: Broker
  /** Returns the store that a process uses, before faults are added. A deliberate defect (mutants.ts) replaces this store. */
  readonly storeFor: (broker: Broker) => Store
  readonly leaseMs: number
}

/** The processes of one simulation. A dead process is replaced. */
export class Fleet {
  readonly members = new Set<Member>()
  readonly #options: FleetOptions
  #count = 0

  constructor(options: FleetOptions) {
    this.#options = options
  }

  start(roles: readonly Role[]): void {
    for (const role of roles) this.#start(role)
  }

  /** Returns the live processes of a role, including those that are still starting. */
  of(role: Role): Member[] {
    return [...this.members].filter((member) => member.role === role)
  }

  /** Pauses a process, as SIGSTOP or a full garbage collection does. */
  pause({ process }: Member, ms: number): void {
    this.#options.history.note(undefined, () => `${process.name} pauses for ${ms} ms`)
    const { clock } = this.#options
    process.pausedUntilMs = clock.nowMs + ms
    process.pauses.push({ fromMs: clock.databaseMs(), toMs: clock.databaseMs() + ms })
  }

  /** Cuts one process off from the store or the broker. */
  cut({ process }: Member, port: 'store' | 'broker', ms: number): void {
    this.#options.history.note(undefined, () => `${process.name} is cut off from the ${port} for ${ms} ms`)
    process[`${port}CutUntilMs`] = this.#options.clock.nowMs + ms
  }

  /** Drains a worker, as a deployment does. */
  async drain(member: Member, graceMs: number): Promise<void> {
    const { history } = this.#options
    const { pool, process } = member
    if (!pool) return
    history.note(undefined, () => `${process.name} drains with a grace period of ${graceMs} ms`)
    await process.run(async () => {
      const deadline = new AbortController()
      setTimeout(() => deadline.abort(), graceMs)
      await pool.drain(deadline.signal)
      await pool.close()
    })
    process.kill()
  }

  #start(role: Role): void {
    const { clock, faults, history, random } = this.#options
    const skewMs = random.chance(0.3) ? random.between(-SKEW_MS_MAX, SKEW_MS_MAX) : 0
    const process = new SimulatedProcess(`${role}-${++this.#count}`, clock, skewMs)
    const broker = new FaultyBroker(this.#options.broker, process, { clock, faults })
    const store = faultyStore(this.#options.storeFor(broker), process, { clock, faults })
    const member: Member = { role, process, broker, store }
    this.members.add(member)
    if (role === 'worker') history.workers++
    history.note(undefined, () => `${process.name} starts, with a clock error of ${skewMs} ms`)
    void process.died.then(() => {
      history.note(undefined, () => `${process.name} is gone`)
      this.members.delete(member)
      broker.forget()
      clock.at(clock.nowMs + random.between(200, 3_000), () => this.#start(role))
    })
    process.run(() => this.#open(member)).catch((error: unknown) => this.#onBroken(member, error))
  }

  /** Ends a process that could not start, because a real process also exits in this case. Another process then replaces it. */
  #onBroken({ process }: Member, error: unknown): void {
    this.#options.history.note(undefined, () => `${process.name} did not start: ${error}`)
    process.kill()
  }

  async #open(member: Member): Promise<void> {
    const { broker, process, role, store } = member
    if (role === 'ingress') member.jobs = await this.#openIngress(broker, store)
    else if (role === 'worker') member.pool = await this.#openWorker(process, broker, store)
    else await startScheduler(this.#portsOf(broker, store))
  }

  async #openIngress(broker: Broker, store: Store): Promise<DurableJobs> {
    const none = () => 0
    const boot = newId('ing_', 16)
    const self = {
      boot,
      role: 'ingress',
      version: 'test',
      slots: none,
      running: none,
      isDraining: () => false,
    } as const
    const presence = await Presence.open({ broker, self, listener: {}, lostMs: WORKER_LOST_MS, log: silentLog })
    const more = {
      blobs: noBlobs,
      log: silentLog,
      retentionMs: 86_400_000,
      bounds: { jobsMax: 1_000, scheduledMax: 1_000 },
    }
    return await DurableJobs.open({ store, broker, presence: () => presence, ...more })
  }

  async #openWorker(process: SimulatedProcess, broker: Broker, store: Store): Promise<Worker> {
    const { history, leaseMs, random, witness } = this.#options
    const definition: WorkerDefinition = {
      name: 'inference',
      slots: random.between(1, 4),
      kinds: { say: witness.kindIn(process), compose: witness.composingIn(process) },
      // In half of the seeds, only one call of the model may run at a time. Most jobs then wait in the store, and workers claim them from there
      // instead of the queue.
      models: ['echo-1'],
      concurrencyLimits: random.chance(0.5) ? [{ kind: 'say', model: 'echo-1', capacity: 1 }] : [],
    }
    const onFatal = (error: unknown) => history.violated(undefined, `the loop of ${process.name} broke: ${error}`)
    const observer = { onEnd: () => {} }
    const more = {
      blobs: noBlobs,
      log: silentLog,
      observer,
      version: 'test',
      leaseMs,
      bodyBudgetBytes: 1024 * 1024,
      onFatal,
    }
    return await Worker.open(definition, { broker, store, ...more })
  }

  #portsOf(broker: Broker, store: Store): Ports {
    const config = {
      jobLeaseMs: this.#options.leaseMs,
      workerSuspectedMs: 2_000,
      workerLostMs: WORKER_LOST_MS,
      webhookSecret: `whsec_${'a'.repeat(32)}`,
      webhookAllowPrivate: false,
    }
    const models = { models: [] }
    const served = { broker, store, blobs: noBlobs, openKeys: openNoKeys, config, log: silentLog, metrics: noMetrics }
    const ports = { ...served, models, version: 'test' }
    // The object has only the ports that a scheduler uses.
    return ports as unknown as Ports
  }
}

/** Jobs of the simulation are so small that blobs are never used. */
const noBlobs = memoryBlobs()

const noCounter = { inc: () => {} }
const noMetrics = {
  gauge: () => {},
  rows: () => {},
  addUsage: () => {},
  jobs: noCounter,
  retries: noCounter,
  reaped: noCounter,
  republished: noCounter,
  expired: noCounter,
  webhooks: noCounter,
}
