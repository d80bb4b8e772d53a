import { setTimeout as sleep } from 'node:timers/promises'
import { urlOf } from '../calls/targets.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes, type Running } from '../machine/processes.ts'
import { cpuMs } from '../machine/usage.ts'

/** Members that hear in one round: few, so that none of them waits for a core. */
const HEARERS = [2, 8] as const
const WARM_UP_MS = 8_000
const ANSWER_MS = 5_000

/** What the control channel costs in a fleet of so many processes, in percent of a core. */
export interface ControlCost {
  readonly members: number
  /** Of one process that hears all others. */
  readonly member: number
  /** Of the broker for each process that hears. */
  readonly brokerEach: number
  /** Of the broker for the whole fleet, projected from these. */
  readonly broker: number
  /** What each process hears, a second. */
  readonly records: number
  readonly kib: number
  /** Of the broker while eight hear. */
  readonly brokerOfEight: number
}

/** How it is measured. */
export interface ControlOptions {
  readonly kafka: Kafka
  readonly dir: string
  readonly members: readonly number[]
  readonly seconds: number
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}

/**
 * Measures what each process pays for hearing all others, and what the broker pays for it: by fleets of which all speak, and
 * first two and then six of which hear. The difference of both rounds is what a hearer costs.
 */
export async function measureControl(options: ControlOptions): Promise<ControlCost[]> {
  const costs: ControlCost[] = []
  for (const members of options.members) {
    options.signal.throwIfAborted()
    const [few, many] = [await round(options, members, HEARERS[0]), await round(options, members, HEARERS[1])]
    const more = HEARERS[1] - HEARERS[0]
    const brokerEach = Math.max(0, (many.broker - few.broker) / more)
    const base = Math.max(0, few.broker - HEARERS[0] * brokerEach)
    const { records, kib } = many
    const member = many.hearers / HEARERS[1]
    const cost = {
      members,
      member,
      brokerEach,
      broker: base + members * brokerEach,
      records,
      kib,
      brokerOfEight: many.broker,
    }
    options.print(
      `control channel of ${members}: ${member.toFixed(2)} % a member, broker ${cost.broker.toFixed(0)} %, ${records.toFixed(0)} records/s`,
    )
    costs.push(cost)
  }
  return costs
}

async function round({ kafka, dir, seconds }: ControlOptions, members: number, hearers: number) {
  await using processes = new Processes(dir, undefined)
  const prefix = `bench-${process.pid}-${members}-${hearers}.`
  const start = async (name: string, args: readonly number[]) => {
    const env = { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: prefix, DATA_DIR: dir, MODELS_FILE: MODELS_FILE }
    return await processes.node({
      name,
      script: './scale/members.ts',
      args: args.map(String),
      env,
      addressOn: 'stdout',
    })
  }
  await start('speakers', [members - hearers, 0])
  const hearing = await start('hearers', [0, hearers])
  await sleep(WARM_UP_MS)
  const heardBefore = await heardOf(hearing)
  const [before, brokerBefore, startedAt] = [cpuMs(hearing.pid), cpuMs(kafka.pid ?? 0), performance.now()]
  await sleep(seconds * 1_000)
  const ms = performance.now() - startedAt
  const percent = (cpu: number) => (cpu / ms) * 100
  const cpu = { hearers: percent(cpuMs(hearing.pid) - before), broker: percent(cpuMs(kafka.pid ?? 0) - brokerBefore) }
  const heard = await heardOf(hearing)
  const perSecond = (count: number) => (count / ms) * 1_000
  return {
    ...cpu,
    records: perSecond(heard.records - heardBefore.records),
    kib: perSecond(heard.bytes - heardBefore.bytes) / 1_024,
  }
}

/** @returns What the first of the hearers has heard so far */
async function heardOf(hearing: Running): Promise<{ records: number; bytes: number }> {
  const answer = await fetch(urlOf(hearing), { signal: AbortSignal.timeout(ANSWER_MS) })
  return (await answer.json()) as { records: number; bytes: number }
}

const MODELS_FILE = new URL('../../models.yaml', import.meta.url).pathname
