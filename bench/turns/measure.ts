import { setTimeout as sleep } from 'node:timers/promises'
import { newId } from '#shared/id.ts'
import { openPostgres, type Postgres } from '../durable/servers.ts'
import { percentile } from '../figures/stats.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'
import { callAt, post, type Seen } from './caller.ts'
import { FLEETS, type Fleet, type FleetName, startFleet } from './fleet.ts'

/** Length of every job. */
export const JOB_MS = 200
/** How often the patient tenant calls. */
const CALL_EVERY_MS = 250
const DURABLE_EVERY_MS = 500
/** Calls of the flooding tenant that are under way at once. */
const CALLERS = 100
const SUBMITTERS = 16
const WARM_UP_SECONDS = 5

/** What tenant A does while B is measured. */
export const FLOODS = ['nothing', '100 calls at once', 'durable jobs'] as const
export type Flood = (typeof FLOODS)[number]

/** How long B's calls, and its durable jobs, waited beside their own length, in milliseconds. */
export interface TurnsSample {
  readonly fleet: FleetName
  readonly flood: Flood
  readonly calls: Waits
  readonly durable: Waits
  /** What A had answered or accepted meanwhile. */
  readonly flooded: number
}

/** Of one sort of job. */
export interface Waits {
  readonly p50: number
  readonly p99: number
  readonly count: number
  readonly refused: number
}

/** How it is measured. */
export interface TurnsOptions {
  /** For which B calls, in each cell. */
  readonly seconds: number
  /** Durable jobs that A submits as fast as they are taken. */
  readonly jobs: number
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}

/** Measures how long the jobs of one tenant wait while another floods the service, beside how long they wait alone. */
export async function measureTurns(options: TurnsOptions, kafka: Kafka, dir: string): Promise<TurnsSample[]> {
  const found = await openPostgres()
  if (typeof found === 'string') throw new Error(`fair turns need a Postgres: ${found}`)
  await using postgres = found
  const samples: TurnsSample[] = []
  for (const name of FLEETS) samples.push(...(await measureFleet(name, options, kafka, postgres, dir)))
  return samples
}

async function measureFleet(name: FleetName, options: TurnsOptions, kafka: Kafka, postgres: Postgres, dir: string) {
  await using processes = new Processes(dir, undefined)
  const fleet = await startFleet(name, processes, kafka, postgres)
  // Code that has run for a while is measured.
  await measureCell(fleet, 'nothing', { ...options, seconds: WARM_UP_SECONDS })
  const samples: TurnsSample[] = []
  for (const flood of FLOODS) {
    options.signal.throwIfAborted()
    const sample = await measureCell(fleet, flood, options)
    options.print(
      `turns, ${name}, ${flood}: call ${sample.calls.p99.toFixed(0)} ms, job ${sample.durable.p99.toFixed(0)} ms`,
    )
    samples.push(sample)
  }
  return samples
}

async function measureCell(fleet: Fleet, flood: Flood, { seconds, jobs }: TurnsOptions): Promise<TurnsSample> {
  const over = new AbortController()
  const flooding = floodWith(fleet, flood, jobs, over.signal)
  // A's calls take every slot first.
  await sleep(2 * JOB_MS)
  const untilMs = performance.now() + seconds * 1_000
  const text = `!echo tokens=1 first_ms=${JOB_MS}`
  const ingress = (index: number) => fleet.urls[index % fleet.urls.length] as URL
  const id = newId('', 12)
  const [calls, durable] = await Promise.all([
    callAt(CALL_EVERY_MS, untilMs, (i) => post(ingress(i), fleet.keys.b, text)),
    // An idempotency key makes a durable job of a call, which is answered as usual.
    callAt(DURABLE_EVERY_MS, untilMs, (i) =>
      post(ingress(i), fleet.keys.b, text, { 'idempotency-key': `b-${id}-${i}` }),
    ),
  ])
  over.abort()
  return { fleet: fleet.name, flood, calls: waitsOf(calls), durable: waitsOf(durable), flooded: await flooding }
}

/** @returns How many calls of A were answered, or jobs accepted */
async function floodWith({ urls, keys }: Fleet, flood: Flood, jobs: number, over: AbortSignal): Promise<number> {
  if (flood === 'nothing') return 0
  const isDurable = flood === 'durable jobs'
  let [left, done] = [isDurable ? jobs : Number.POSITIVE_INFINITY, 0]
  const headers: Record<string, string> = isDurable ? { prefer: 'respond-async' } : {}
  const one = async (index: number) => {
    while (!over.aborted && left-- > 0) {
      const url = urls[index % urls.length] as URL
      const status = await post(url, keys.a, `!echo tokens=1 first_ms=${JOB_MS}`, headers).catch(() => 0)
      if (status === 200 || status === 202) done++
      else await sleep(JOB_MS)
    }
  }
  await Promise.all(Array.from({ length: isDurable ? SUBMITTERS : CALLERS }, (_, index) => one(index)))
  return done
}

function waitsOf({ ms, refused }: Seen): Waits {
  const waits = ms.map((took) => Math.max(0, took - JOB_MS))
  return { p50: percentile(waits, 0.5), p99: percentile(waits, 0.99), count: waits.length, refused }
}
