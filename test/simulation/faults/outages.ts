import { Priority } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import type { Random } from '../../chaos/load/random.ts'
import type { VirtualClock } from '../clock.ts'
import type { Fleet } from '../fleet.ts'
import type { History } from '../history.ts'
import { FAULTS_MS, type Faults } from './faults.ts'

/** The parts of a simulation that an outage changes, and the clock that schedules the outages. */
interface Whole {
  readonly clock: VirtualClock
  readonly fleet: Fleet
  readonly faults: Faults
  readonly history: History
  readonly broker: Broker
  readonly leaseMs: number
}

/** Schedules outages, pauses and crashes at random times before the faults end. Each type occurs in half of the seeds. */
export function planOutages(whole: Whole): void {
  const { clock, faults } = whole
  const { random } = faults
  const some = (most: number, outage: (whole: Whole) => void) => {
    for (let left = random.chance(0.5) ? random.between(1, most) : 0; left > 0; left--) {
      clock.at(random.between(500, FAULTS_MS - 500), () => outage(whole))
    }
  }
  some(3, pauseOne)
  some(4, cutOne)
  some(2, killOne)
  some(2, drainOne)
  some(2, loseRecords)
  some(2, stopStore)
  some(2, stopBroker)
}

function pauseOne({ faults, fleet, leaseMs }: Whole): void {
  const member = anyMember(fleet, faults.random)
  if (member) fleet.pause(member, faults.random.between(200, 2 * leaseMs))
}

function cutOne({ faults, fleet, leaseMs }: Whole): void {
  const { random } = faults
  const member = anyMember(fleet, random)
  if (member) fleet.cut(member, random.chance(0.85) ? 'store' : 'broker', random.between(500, 4 * leaseMs))
}

function killOne({ faults, fleet }: Whole): void {
  anyMember(fleet, faults.random)?.process.kill()
}

function drainOne({ faults, fleet }: Whole): void {
  const worker = fleet.of('worker').find(({ process }) => !process.isPaused)
  if (worker) void fleet.drain(worker, faults.random.between(0, 3_000))
}

/** Simulates that the broker loses every queued record. */
function loseRecords({ broker, history }: Whole): void {
  history.note(undefined, () => 'the broker loses all records')
  for (const priority of Priority.options) void empty(broker, jobsTopic('inference', priority))
}

async function empty(broker: Broker, name: string): Promise<void> {
  const queue = await broker.openQueue(name)
  const enough = new AbortController()
  const taken = queue.take(Number.MAX_SAFE_INTEGER, enough.signal)
  enough.abort()
  for (const delivery of await taken) delivery.acknowledge()
  await queue.close()
}

function stopStore(whole: Whole): void {
  stop(whole, 'store')
}

function stopBroker(whole: Whole): void {
  stop(whole, 'broker')
}

function stop({ clock, faults, history }: Whole, port: 'store' | 'broker'): void {
  const untilMs = Math.min(FAULTS_MS, clock.nowMs + faults.random.between(100, 8_000))
  if (faults.isDown(port)) return
  history.note(undefined, () => `the ${port} goes down`)
  const outage = faults.begin(port, clock.databaseMs())
  clock.at(untilMs, () => {
    history.note(undefined, () => `the ${port} is up again`)
    outage.toMs = clock.databaseMs()
  })
}

/** Chooses a random process. Half of the time a worker is chosen, because workers can fail in the most ways. */
function anyMember(fleet: Fleet, random: Random) {
  const [first, ...others] = random.chance(0.5) ? fleet.of('worker') : fleet.members
  return first && random.pick([first, ...others])
}
