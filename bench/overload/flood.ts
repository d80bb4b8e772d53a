import { setTimeout as sleep } from 'node:timers/promises'
import type { Broker } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { readJob } from '#shared/jobs/records.ts'
import { jobsTopic, REPLIES } from '#shared/jobs/topics.ts'
import { memoryBlobs } from '../../test/support/jobs/blobs.ts'
import { mergeSaid, openBroker, silentLog } from '../../test/support/jobs/jobs.ts'
import { percentile } from '../figures/stats.ts'

const SLOTS = 8
const ANSWER_MS = 20
/** Calls of the one tenant for each of the other. */
const TIMES = 100
const CALLS = 60
const CALL_EVERY_MS = 50
/** Calls of the other tenant that wait at once when its share is measured. */
const SHARED_CALLS = 900
const WAITING_MAX = 20_000
const TAKE_MAX = 100

/** What a tenant meets while another floods the ingresses with a hundred times as many calls. */
export interface FloodFigures {
  readonly ingresses: number
  /** Calls of the flood that were sent in all. */
  readonly flood: number
  /** Calls of the flood that started between one of the other tenant's and its start. */
  readonly startsP50: number
  readonly startsMax: number
  /** The part of the starts that the other tenant has, when it has as much waiting as the flood. */
  readonly share: number
}

/** Floods ingresses over the memory broker, with a worker that only waits. */
export async function measureFlood(ingresses: number, signal: AbortSignal): Promise<FloodFigures> {
  const broker = await openBroker()
  const starts: string[] = []
  const worker = await startWorker(broker, starts)
  const all = await Promise.all(Array.from({ length: ingresses }, () => openIngress(broker)))
  try {
    const behind: number[] = []
    for (let i = 0; i < CALLS && !signal.aborted; i++) {
      for (let nth = 0; nth < TIMES; nth++) await submit(all[nth % ingresses], 'flood')
      const before = starts.length
      const job = await submit(all[0], 'one')
      void started(job, starts).then((at) => behind.push(at - before))
      await sleep(CALL_EVERY_MS)
    }
    while (behind.length < CALLS && !signal.aborted) await sleep(CALL_EVERY_MS)
    for (let i = 0; i < SHARED_CALLS; i++) await submit(all[0], 'one')
    // The ingresses hear of each other, and what was sent before starts.
    while (starts.filter((tenant) => tenant === 'one').length < CALLS + SHARED_CALLS / 3 && !signal.aborted)
      await sleep(ANSWER_MS)
    const from = starts.length
    while (starts.length < from + SHARED_CALLS / 3 && !signal.aborted) await sleep(ANSWER_MS)
    const shared = starts.slice(from)
    return {
      ingresses,
      flood: CALLS * TIMES,
      startsP50: percentile(behind, 0.5),
      startsMax: Math.max(...behind),
      share: shared.filter((tenant) => tenant === 'one').length / shared.length,
    }
  } finally {
    await Promise.all(all.map((ingress) => ingress.close()))
    await worker.close()
    await broker.close()
  }
}

async function openIngress(broker: Broker): Promise<AttachedJobs> {
  return await AttachedJobs.open({
    broker,
    blobs: memoryBlobs(),
    log: silentLog,
    observer: { onRetry: () => {}, onEnd: () => {} },
    version: 'bench',
    workerSuspectedMs: 2_000,
    workerLostMs: 5_000,
    startTimeoutMs: 3_600_000,
    jobsMax: WAITING_MAX,
  })
}

async function submit(ingress: AttachedJobs | undefined, tenant: string) {
  if (!ingress) throw new Error('no ingress')
  const what = { pool: 'inference', kind: 'say', model: 'm', body: {}, stream: true, timeoutMs: 600_000 } as const
  const job = await ingress.submit({
    ...what,
    tenant,
    requestId: 'req_bench',
    traceparent: undefined,
    merge: mergeSaid,
    isOutput: () => true,
  })
  // Somebody must read what becomes of it; at the end of the run it is failed.
  const end = job.next().catch(() => undefined)
  return { job, end }
}

/** How many calls had started when this one did. */
async function started({ job, end }: Awaited<ReturnType<typeof submit>>, starts: readonly string[]): Promise<number> {
  while (job.state === 'queued') await Promise.race([end, sleep(1)])
  return starts.length
}

/** A worker that starts what comes, waits, and says that it is done. */
async function startWorker(broker: Broker, starts: string[]): Promise<{ close(): Promise<void> }> {
  let running = 0
  const boot = 'wrk_bench'
  const presence = await Presence.open({
    broker,
    log: silentLog,
    lostMs: 5_000,
    listener: {},
    self: {
      boot,
      role: 'inference',
      version: 'bench',
      slots: () => SLOTS,
      running: () => running,
      isDraining: () => false,
    },
  })
  const queue = await broker.openQueue(jobsTopic('inference'))
  const closing = new AbortController()
  const tell = (job: NonNullable<ReturnType<typeof readJob>>, type: 'started' | 'completed', seq: number) => {
    const event = { type, job_id: job.id, attempt: job.attempt, seq, ...(type === 'completed' && { deltas: [] }) }
    const value = Buffer.from(JSON.stringify({ worker: boot, events: [event] }))
    return broker.send(REPLIES, job.reply?.shard ?? 0, job.reply?.boot ?? '', value)
  }
  const run = async (value: Buffer) => {
    const job = readJob(value)
    if (!job) return
    starts.push(job.tenant)
    await tell(job, 'started', 1)
    await sleep(ANSWER_MS)
    await tell(job, 'completed', 2)
  }
  const loop = async () => {
    while (!closing.signal.aborted) {
      const free = SLOTS - running
      if (free === 0) {
        await sleep(1)
        continue
      }
      for (const delivery of await queue.take(Math.min(free, TAKE_MAX), closing.signal)) {
        delivery.acknowledge()
        running++
        void run(delivery.value).finally(() => running--)
      }
    }
  }
  const done = loop().catch(() => undefined)
  return {
    async close() {
      closing.abort()
      await done
      while (running > 0) await sleep(ANSWER_MS)
      await queue.close()
      await presence.close()
    },
  }
}
