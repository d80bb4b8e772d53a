import { resolve } from 'node:path'
import { z } from 'zod'
import { parseConfig } from '#shared/config/config.ts'
import { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import { Presence } from '#shared/jobs/presence.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import { type Handler, handle } from '#shared/kinds/kind.ts'
import { newId } from '#shared/lib/id.ts'
import { openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { CONCURRENCY, type JobSystem, OpenJobs, PAYLOAD, RESULT } from './system.ts'

const DAY_MS = 24 * 3_600_000
const TENANT = 'key_bench'
/** The model catalogue. Sluice does not start without one. */
const MODELS_FILE = resolve(import.meta.dirname, '../../models.yaml')

/** Sluice without HTTP. Durable jobs and a worker run in this process, with SQLite or Postgres. */
export async function openLibrary(settings: { databaseUrl?: string; dir: string }): Promise<JobSystem> {
  const { dir, databaseUrl } = settings
  const log = openLog('silent', 'bench')
  const onFatal = (error: unknown) => {
    throw error
  }
  const config = parseConfig({ DATA_DIR: dir, DATABASE_URL: databaseUrl, MODELS_FILE, SANDBOX: 'off' })
  const ports = await openPorts(config, log, 'bench', true, onFatal)
  const { store, broker, blobs } = ports
  if (!store) throw new Error('no store')
  // The worker publishes its free slots only to an ingress, so this process registers as an ingress.
  const presence = await Presence.open({
    ...{ broker, log, lostMs: 5_000, listener: {} },
    self: {
      boot: newId('ing_', 16),
      role: 'ingress',
      version: 'bench',
      slots: none,
      running: none,
      isDraining: () => false,
    },
  })
  const jobs = await DurableJobs.open({
    store,
    broker,
    blobs,
    log,
    presence: () => presence,
    retentionMs: DAY_MS,
    bounds: { jobsMax: 1_000_000, scheduledMax: 1_000_000 },
  })
  const open = new OpenJobs()
  const observer = { onEnd: () => open.end() }
  const options = {
    broker,
    blobs,
    log,
    observer,
    version: 'bench',
    store: ownerOf(store),
    leaseMs: 9_000,
    bodyBudgetBytes: 1024 * 1024,
    onFatal,
  }
  let pool: Worker | undefined
  const stopWork = async () => {
    await pool?.close()
    pool = undefined
  }
  return {
    async submit() {
      open.begin()
      return idOf(await jobs.create(newJob()))
    },
    async completed(id) {
      const job = await jobs.waitForEnd(TENANT, id, AbortSignal.timeout(30_000))
      if (job.state !== 'completed') throw new Error(`a job is ${job.state}`)
    },
    async startWork() {
      pool ??= await Worker.open({ name: 'inference', slots: CONCURRENCY, kinds: { nothing: NOTHING } }, options)
    },
    drained: () => open.drained(),
    stopWork,
    async close() {
      await stopWork()
      await jobs.close()
      await presence.close()
      await portsService(ports).close()
    },
  }
}

function none(): number {
  return 0
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
