/**
 * Deterministic simulation of durable jobs (docs/operate/reliability.md, How it is checked). The code of the real ingress, worker and scheduler
 * runs over the embedded broker and store, on a virtual clock. Calls to store and broker fail at random (`faults/faults.ts`), and so do whole
 * processes, the store and the broker (`faults/outages.ts`). Equal seeds give equal runs.
 */
import { openMemoryBroker } from '#shared/broker/memory.ts'
import { topicsFor } from '#shared/jobs/records.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import { openRandom, type Random } from '../chaos/load/random.ts'
import { check } from './check.ts'
import { Clients } from './clients.ts'
import { VirtualClock } from './clock.ts'
import { FairnessCheck } from './fairness-check.ts'
import { FAULTS_MS, Faults } from './faults/faults.ts'
import { planOutages } from './faults/outages.ts'
import { Fleet } from './fleet.ts'
import { History, watchedStore } from './history.ts'
import { burstRequest, randomRequest } from './job-request.ts'
import type { Mutant } from './mutants.ts'
import { seedIds } from './replacements.ts'
import { openScratch } from './scratch.ts'
import { Witness } from './work.ts'

/** Time in which the jobs are submitted, from the start of the simulation. */
const SUBMITS_MS = 12_000
/** Maximum virtual duration of a run. Longer than the longest deadline after the last submission, plus grace periods and leases. */
const END_MS = 200_000
/** Burst of jobs of one tenant: its probability per seed, its number of jobs and its duration. */
const BURST_CHANCE = 0.2
const BURST_SIZE = 24
const BURST_MS = 1_000
/** Interval between checks for the end of the run. */
const STEP_MS = 500

/** Outcome of the simulation of one seed. */
export interface Report {
  /** Empty if no invariant was violated. Otherwise the seed, the violations, and the history of one violating job: the one with the fewest lines. */
  readonly failure: string
  /** Numbers of jobs by end state and of retries by reason. */
  readonly counts: Readonly<Record<string, number>>
  /** Returns the complete history as text. */
  story(): string
}

/**
 * Runs one simulation. The seed determines all random choices, so the same seed gives the same run.
 *
 * @param mutant Deliberate defect that replaces a part of the code
 */
export async function simulate(seed: number, mutant: Mutant = {}): Promise<Report> {
  const random = openRandom(seed)
  seedIds(seed ^ 0x1d5)
  const clock = new VirtualClock()
  const restore = clock.install(() => random.next())
  using scratch = openScratch()
  try {
    return await new Simulation(seed, random, clock, mutant).run(scratch.path)
  } finally {
    restore()
  }
}

class Simulation {
  readonly #seed: number
  readonly #random: Random
  readonly #clock: VirtualClock
  readonly #mutant: Mutant
  readonly #faults: Faults
  readonly #history: History
  readonly #witness: Witness
  readonly #leaseMs: number

  constructor(seed: number, random: Random, clock: VirtualClock, mutant: Mutant) {
    this.#seed = seed
    this.#random = random
    this.#clock = clock
    this.#mutant = mutant
    this.#faults = new Faults(seed)
    this.#history = new History(() => clock.nowMs)
    this.#witness = new Witness(this.#history, clock.databaseMs)
    this.#leaseMs = random.pick([2_000, 3_000, 6_000])
  }

  async run(directory: string): Promise<Report> {
    const [clock, faults, history, leaseMs] = [this.#clock, this.#faults, this.#history, this.#leaseMs]
    const store = openSqliteStore({ directory, boot: 'simulation', now: clock.databaseMs, sync: async () => {} })
    const broker = await openMemoryBroker({ topics: topicsFor(['inference'], 60_000) })
    const fairness = new FairnessCheck(history)
    const watched = watchedStore(store, history, (claims) => fairness.sawClaims(claims))
    const storeFor = this.#mutant.storeFor ?? ((inner) => inner)
    const world = { clock, faults, history, random: this.#random, leaseMs, broker, witness: this.#witness }
    const fleet = new Fleet({ ...world, storeFor: (own) => storeFor(watched, own) })
    const clients = this.#openClients(fleet)
    this.#plan(fleet, clients)
    planOutages({ ...world, fleet })
    await this.#pass(clients)
    const calmAtMs = clock.databaseMs() - clock.nowMs + FAULTS_MS
    const { outages } = faults
    await check({ store, history, witness: this.#witness, received: clients.received, leaseMs, outages, calmAtMs })
    await store.close()
    return { failure: this.#failure(), counts: history.counts(), story: () => history.story() }
  }

  #openClients(fleet: Fleet): Clients {
    const follow = this.#mutant.follow ?? (({ jobs }, id, after, signal) => jobs.follow(ALL_TENANTS, id, after, signal))
    return new Clients({ clock: this.#clock, history: this.#history, random: this.#random, fleet, follow })
  }

  /** Schedules the starts of processes, the submissions and the faults. */
  #plan(fleet: Fleet, clients: Clients): void {
    const random = this.#random
    fleet.start(['ingress', 'ingress', 'worker', 'worker', 'scheduler'])
    if (random.chance(0.3)) fleet.start(['scheduler'])
    for (let left = random.between(10, 20); left > 0; left--) {
      const request = randomRequest(`ref-${left}`, random)
      this.#clock.at(random.between(0, SUBMITS_MS), () => clients.begin(request))
    }
    const burstAtMs = random.between(0, SUBMITS_MS / 2)
    for (let left = random.chance(BURST_CHANCE) ? BURST_SIZE : 0; left > 0; left--) {
      const request = burstRequest(`burst-${left}`, random)
      this.#clock.at(burstAtMs + random.between(0, BURST_MS), () => clients.begin(request))
    }
    this.#clock.at(FAULTS_MS, () => {
      this.#history.note(undefined, () => 'the faults stop')
      this.#faults.isOn = false
    })
  }

  /**
   * Advances time until the faults are over, all clients are done and all jobs have ended. Afterwards, time advances by the duration of a lease.
   * Within this time, workers must detect and stop outdated runs.
   */
  async #pass(clients: Clients): Promise<void> {
    const clock = this.#clock
    await clock.run(FAULTS_MS)
    while ((clients.isBusy || !this.#history.isOver) && clock.nowMs < END_MS) await clock.run(clock.nowMs + STEP_MS)
    await clock.run(clock.nowMs + this.#leaseMs + STEP_MS)
    if (clients.isBusy) this.#history.violated(undefined, 'I1: a client waits forever')
  }

  #failure(): string {
    const { violations } = this.#history
    if (violations.length === 0) return ''
    const id = this.#history.smallestViolating()
    const said = violations.map(({ jobId, text }) => `  ${jobId ?? 'all'}: ${text}`)
    const head = `Seed ${this.#seed}, lease ${this.#leaseMs} ms, faults: ${this.#faults}`
    return [head, ...said.slice(0, 20), `Timeline of ${id ?? 'all'}:`, this.#history.timeline(id)].join('\n')
  }
}
