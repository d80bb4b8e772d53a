/**
 * One batch of echo requests, with the service killed on the way: what came out, how often, how fast, with how much memory, and
 * how long plain calls of another project took meanwhile.
 *
 *   node bench/batches/run.ts [requests, default 50000] [kills, default 3] [fleet]
 *
 * With `fleet` the service is an ingress, a worker and a scheduler that meet in Kafka and Postgres, and worker and ingress are
 * killed in turns.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { openPostgres } from '../durable/servers.ts'
import { openKafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'
import { type Batch, createBatch, jobsOf, look, namesIn } from './api.ts'
import { callBeside } from './beside.ts'
import { ratesOf, type Sample, sliceMemory, tailsOf } from './figures.ts'
import { Service } from './service.ts'

const POLL_INTERVAL_MS = 500
const WARM_UP_MS = 5_000
/** Of the other project by itself: before the batch, and again behind it. */
const ALONE_MS = 15_000
const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])

const [, , requestsText = '50000', killsText = '3', form = 'embedded'] = process.argv
const [requests, kills] = [Number(requestsText), Number(killsText)]
const print = (line: string) => void process.stdout.write(`${line}\n`)
process.exitCode = await main()

async function main(): Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), 'sluice-batches-'))
  try {
    if (form !== 'fleet') {
      await using processes = new Processes(dir, process.env.PROFILE_DIR)
      return await measure(await Service.start(processes, undefined))
    }
    await using kafka = await openKafka(dir)
    const postgres = await openPostgres()
    if (typeof postgres === 'string') throw new Error(`A fleet needs Postgres: ${postgres}`)
    await using _ = postgres
    await using processes = new Processes(dir, process.env.PROFILE_DIR)
    return await measure(await Service.start(processes, { kafka, postgres }))
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

async function measure(service: Service): Promise<number> {
  const key = await service.key()
  const callsFor = async (ms: number) => await callBeside(service, key, AbortSignal.timeout(ms))
  await callsFor(WARM_UP_MS)
  const alone = await callsFor(ALONE_MS)
  const startedAt = performance.now()
  const created = await createBatch(service, requests)
  print(`uploaded and created after ${seconds(startedAt)} s`)
  const stop = new AbortController()
  const beside = callBeside(service, key, stop.signal)
  const { batch, samples } = await watch(service, created, startedAt)
  stop.abort()
  const busy = await beside
  alone.push(...(await callsFor(ALONE_MS)))
  print(`${batch.status} after ${seconds(startedAt)} s: ${JSON.stringify(batch.request_counts)}`)
  print(`results a second, by tenths of the time: ${ratesOf(samples).join(' ')}`)
  for (const [role, medians] of sliceMemory(samples)) {
    print(`resident MiB of ${role}, medians of tenths of the time: ${medians.join(' ')}`)
  }
  print(`plain calls of another project, ms: ${tailsOf(alone, busy)}`)
  return await verify(service, batch)
}

/** Looks on until the batch has ended, and kills processes at even shares of it. */
async function watch(service: Service, created: Batch, startedAt: number) {
  const samples: Sample[] = []
  let batch = created
  for (let killed = 0; !ENDED.has(batch.status); ) {
    await delay(POLL_INTERVAL_MS)
    batch = await look(service, batch)
    const done = batch.request_counts.completed + batch.request_counts.failed
    samples.push({ atMs: performance.now() - startedAt, done, memory: service.memory() })
    if (killed === kills || done < (requests * (killed + 1)) / (kills + 1) || ENDED.has(batch.status)) continue
    const role = await service.kill(killed++)
    print(`killed ${role} at ${done} of ${requests}, up again after ${seconds(startedAt)} s`)
  }
  return { batch, samples }
}

/** Counts what came out. @returns 0 where each request has one result, and one job. */
async function verify(service: Service, batch: Batch): Promise<number> {
  const names = await namesIn(service, batch.output_file_id)
  const jobs = await jobsOf(service, batch.id)
  const different = new Set(names).size
  print(`results ${names.length}, of them different ${different}; in order: ${isInOrder(names)}`)
  print(`jobs of requests ${jobs.all}, completed ${jobs.completed}, run again ${jobs.again}`)
  return names.length === requests && different === requests && jobs.all === requests ? 0 : 1
}

function isInOrder(names: readonly string[]): boolean {
  return names.every((name, i) => name === `r${i}`)
}

function seconds(since: number): string {
  return ((performance.now() - since) / 1_000).toFixed(0)
}
