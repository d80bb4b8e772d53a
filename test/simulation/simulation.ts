/**
 * Deterministic simulation of durable jobs (docs/operate/reliability.md, How it is checked): the real ingress, worker and
 * scheduler over the embedded broker and store, on a virtual clock, while every port call may fail in the ways of
 * `faults/faults.ts` and everything may fail as a whole in those of `faults/outages.ts`. One seed is one run, the same
 * each time.
 */
import { openMemoryBroker } from '#shared/broker/memory.ts'
import { topicsFor } from '#shared/jobs/topics.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { EVERY_TENANT } from '#shared/store/store.ts'
import { openRandom, type Random } from '../chaos/load/random.ts'
import { check } from './check.ts'
import { Clients } from './clients.ts'
import { VirtualClock } from './clock.ts'
import { FAULTS_MS, Faults } from './faults/faults.ts'
import { planOutages } from './faults/outages.ts'
import { Fleet } from './fleet.ts'
import { History, watchedStore } from './history.ts'
import type { Mutant } from './mutants.ts'
import { openScratch } from './scratch.ts'
import { TurnsCheck } from './turns.ts'
import { crowdWish, wishOf } from './wish.ts'
import { Witness } from './work.ts'

/** Jobs are submitted for so long. */
const SUBMITS_MS = 12_000
/** Longer than anything may take: the longest deadline after the last submit, graces, leases. */
const END_MS = 200_000
/** How often a tenant submits so many at once, within such a time. */
const CROWDED = 0.2
const CROWD = 24
const CROWD_MS = 1_000
/** How often it is looked whether all is over. */
const STEP_MS = 500

/** What one seed showed. */
export interface Report {
  /** Empty when all went well; otherwise the seed, what was violated, and the timeline of the smallest such job. */
  readonly failure: string
  /** What happened to how many jobs: their last states, and why they ran again. */
  readonly counts: Readonly<Record<string, number>>
  /** Everything that happened, in words. */
  story(): string
}

let ids: Random = openRandom(0)

/** Stands in for `newId`: ids are part of the schedule. */
export function seededId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; i++) id += ids.between(0, 35).toString(36)
  return id
}

/** Runs one seed. @param mutant What is broken on purpose */
export async function simulate(seed: number, mutant: Mutant = {}): Promise<Report> {
  const random = openRandom(seed)
  ids = openRandom(seed ^ 0x1d5)
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
    const store = openSqliteStore({ directory, boot: 'simulation', now: clock.databaseMs })
    const broker = await openMemoryBroker({ topics: topicsFor(['inference'], 60_000) })
    const turns = new TurnsCheck(history)
    const watched = watchedStore(store, history, (claims) => turns.sawClaims(claims))
    const storeFor = this.#mutant.storeFor ?? ((inner) => inner)
    const world = { clock, faults, history, random: this.#random, leaseMs, broker, witness: this.#witness }
    const fleet = new Fleet({ ...world, storeFor: (own) => storeFor(watched, own) })
    const clients = this.#openClients(fleet)
    this.#plan(fleet, clients)
    planOutages({ ...world, fleet })
    await this.#pass(clients)
    const calmAtMs = clock.databaseMs() - clock.nowMs + FAULTS_MS
    const { outages } = faults
    await check({ store, history, witness: this.#witness, told: clients.told, leaseMs, outages, calmAtMs })
    await store.close()
    return { failure: this.#failure(), counts: history.counts(), story: () => history.story() }
  }

  #openClients(fleet: Fleet): Clients {
    const follow =
      this.#mutant.follow ?? (({ jobs }, id, after, signal) => jobs.follow(EVERY_TENANT, id, after, signal))
    return new Clients({ clock: this.#clock, history: this.#history, random: this.#random, fleet, follow })
  }

  /** Who is there, and who wants what when. */
  #plan(fleet: Fleet, clients: Clients): void {
    const random = this.#random
    fleet.start(['ingress', 'ingress', 'worker', 'worker', 'scheduler'])
    if (random.chance(0.3)) fleet.start(['scheduler'])
    for (let left = random.between(10, 20); left > 0; left--) {
      const wish = wishOf(`ref-${left}`, random)
      this.#clock.at(random.between(0, SUBMITS_MS), () => clients.begin(wish))
    }
    const crowdAtMs = random.between(0, SUBMITS_MS / 2)
    for (let left = random.chance(CROWDED) ? CROWD : 0; left > 0; left--) {
      const wish = crowdWish(`crowd-${left}`, random)
      this.#clock.at(crowdAtMs + random.between(0, CROWD_MS), () => clients.begin(wish))
    }
    this.#clock.at(FAULTS_MS, () => {
      this.#history.note(undefined, () => 'the faults stop')
      this.#faults.isOn = false
    })
  }

  /** Lets time pass until everybody has what they waited for, and those who were mistaken found out. */
  async #pass(clients: Clients): Promise<void> {
    const clock = this.#clock
    await clock.run(FAULTS_MS)
    while ((clients.isBusy || !this.#history.isOver) && clock.nowMs < END_MS) await clock.run(clock.nowMs + STEP_MS)
    await clock.run(clock.nowMs + this.#leaseMs + STEP_MS)
    if (clients.isBusy) this.#history.violated(undefined, 'I1: a client waits for ever')
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
