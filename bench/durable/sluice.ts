import { z } from 'zod'
import { openDiskBlobs } from '#shared/blobs/disk.ts'
import { openMemoryBroker } from '#shared/broker/memory.ts'
import { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { topicsFor } from '#shared/jobs/topics.ts'
import { Pool } from '#shared/jobs/worker/pool.ts'
import { type Handler, handle } from '#shared/kinds/kind.ts'
import { openLog } from '#shared/log/log.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { Store } from '#shared/store/store.ts'
import { type JobSystem, PAYLOAD, RESULT, Tally, WORKERS } from './system.ts'

const DAY_MS = 24 * 3_600_000
const TENANT = 'key_bench'

/** Sluice without HTTP: jobs and a pool of workers in this process, on one of its stores. */
export async function openSluice(settings: { databaseUrl?: string; dir: string }): Promise<JobSystem> {
  const store = await openStore(settings)
  const log = openLog('silent', 'bench')
  const broker = await openMemoryBroker({ topics: topicsFor(['inference'], DAY_MS) })
  const blobs = await openDiskBlobs(`${settings.dir}/blobs`)
  const presence = () => {
    throw new Error('no job is cancelled here')
  }
  const jobs = await DurableJobs.open({ store, broker, blobs, log, presence, retentionMs: DAY_MS, jobsMax: 1_000_000 })
  const tally = new Tally()
  const onFatal = (error: unknown) => {
    throw error
  }
  const observer = { onEnd: () => tally.end() }
  const options = {
    broker,
    blobs,
    log,
    observer,
    version: 'bench',
    store,
    leaseMs: 9_000,
    bodyRoomBytes: 1024 * 1024,
    onFatal,
  }
  let pool: Pool | undefined
  const stopWork = async () => {
    await pool?.close()
    pool = undefined
  }
  return {
    hasOwnWorkers: false,
    async submit() {
      tally.begin()
      return idOf(await jobs.create(newJob()))
    },
    async completed(id) {
      const job = await jobs.waitForEnd(TENANT, id, AbortSignal.timeout(30_000))
      if (job.state !== 'completed') throw new Error(`a job is ${job.state}`)
    },
    async startWork() {
      pool ??= await Pool.open({ name: 'inference', slots: WORKERS, kinds: { nothing: NOTHING } }, options)
    },
    drained: () => tally.settled(),
    stopWork,
    async close() {
      await stopWork()
      await jobs.close()
      await broker.close()
      await store.close()
    },
  }
}

async function openStore({ databaseUrl, dir }: { databaseUrl?: string; dir: string }): Promise<Store> {
  if (databaseUrl === undefined) return openSqliteStore({ directory: dir, boot: 'bench' })
  return await openPostgresStore({ url: databaseUrl, onProblem: (message) => process.stderr.write(`${message}\n`) })
}

function newJob() {
  return {
    pool: 'inference' as const,
    kind: 'nothing',
    tenant: TENANT,
    endpoint: '/v1/chat/completions',
    model: PAYLOAD.model,
    body: PAYLOAD,
    stream: false,
    encode: { request_id: 'req_bench', model: PAYLOAD.model, include_usage: false, version: '' },
    deadlineInMs: DAY_MS,
    traceparent: undefined,
  }
}

/** Ends at once. */
const NOTHING: Handler = handle(
  {
    name: 'nothing',
    pool: 'inference',
    request: z.unknown(),
    merge: () => undefined,
    isOutput: () => true,
    answer: () => ({ whole: ([result]) => result }),
  },
  async function* () {
    yield RESULT
  },
)

function idOf(created: Awaited<ReturnType<DurableJobs['create']>>): string {
  if (created.outcome !== 'created') throw new Error(`the job was not created: ${created.outcome}`)
  return created.job.id
}
