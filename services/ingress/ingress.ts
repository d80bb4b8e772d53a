import { once } from 'node:events'
import type { Server } from 'node:http'
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { PoolName } from '#schemas/job.ts'
import { Budgets, budgetsIn } from '#shared/capacity/budgets.ts'
import { ByteBudget, openDiskFloor, StoredQuota } from '#shared/capacity/byte-budgets.ts'
import { type AdmittingJobs, admitJob, SubmitQueue } from '#shared/capacity/capacity.ts'
import { Fleet } from '#shared/capacity/fleet-counts.ts'
import { RateLimits } from '#shared/capacity/rate-limits.ts'
import { type Config, ConfigError } from '#shared/config/config.ts'
import { Conversations } from '#shared/engines/upstream/conversations.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { DurableJobs, type NewDurableJob } from '#shared/jobs/durable/durable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Ports } from '#shared/ports.ts'
import { preparingOf } from '#shared/prepare-progress.ts'
import { answerHealth, type Health } from '#shared/process/health.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import type { StoreView } from '#shared/store/store.ts'
import { type Gauges, HistoryRecorder, WHOLE_SERVICE } from '#shared/usage/history.ts'
import { openBodyBatches, RequestBatches } from '#shared/usage/request-log.ts'
import { UsageBatches } from '#shared/usage/usage.ts'
import { ADMIN_METRICS, isMetricsOfOthers } from './admin/fleet.ts'
import { openApp } from './app.ts'
import { startBatches } from './batches/pool/batch.ts'
import { ApiKeys } from './callers/keys.ts'
import type { IngressContext } from './calls/call.ts'
import { JOB_ENDPOINTS } from './endpoints/endpoints.ts'
import { endpointOf } from './endpoints/extension.ts'
import { showGauges } from './gauges.ts'
import { Cors, closeServer, listen, SERVER_BOUNDS } from './http/server.ts'
import { openPages } from './pages/pages.ts'
import type { SocketBounds } from './ws/frames.ts'
import { isSocketRequest, Sockets } from './ws/sockets.ts'

/**
 * Time in ms without a reachable Kafka broker after which the ingress is not ready. The restart or replacement of one
 * broker takes less time.
 */
const FAILOVER_MS = 15_000
/**
 * Time in ms without a record on the control channel after which the ingress is not ready. Kafka's election of a new
 * leader takes 9 to 12 s, which is less.
 */
const SILENCE_MS_MAX = 30_000
const DRAIN_POLL_MS = 50

export interface Ingress extends Service {
  readonly port: number
  /** API key that was created at the first start, to be shown once. Undefined at later starts. */
  readonly createdKey: string | undefined
}

/**
 * Starts the ingress. Resolves when the server listens.
 *
 * @param socketBounds Values that replace those of {@link SOCKET_BOUNDS}
 * @throws Error if the port is in use or the broker cannot be reached
 */
export async function startIngress(ports: Ports, socketBounds: Partial<SocketBounds> = {}): Promise<Ingress> {
  const { config, log } = ports
  const keys = await ApiKeys.open(await ports.openKeys(), config.sluiceApiKey, log, isFirstKeyAdmin(config))
  const jobs = await openAttached(ports)
  const closing = new AbortController()
  const { context, fleet } = await openContext(ports, keys, jobs, closing.signal)
  const { store, durable, usage, requests, bodies, history, storage } = context
  const budgets = budgetsIn(keys.known, Date.now()).length
  if (budgets > 0 && !ports.models.hasPrices)
    ports.log.warn({ budgets }, 'budgets have no effect, because no model has a price; set prices in models.yaml')
  const batches = store && (await startBatches(ports, context, store.files))
  const app = openApp(context)
  const answerPage = openPages(context)
  const cors = new Cors(config.corsOrigins)
  const sockets = new Sockets(context, cors, socketBounds)
  const leave = { isAnnounced: false }
  const problems = () => problemsOf(ports, jobs, leave.isAnnounced)
  const health = healthOf(ports, problems)
  const { server, port } = await listen(
    (req, res) => {
      // The value `nosniff` prevents browsers from guessing a content type. Otherwise bytes from a caller could run as
      // a page of this origin.
      res.setHeader('x-content-type-options', 'nosniff')
      // If this process drains, then this header makes the client open a new connection for its next request (RFC 9112 §9.6). A load balancer opens
      // that connection to another ingress.
      if (leave.isAnnounced) res.setHeader('connection', 'close')
      if (cors.answer(req, res)) return
      // All paths of the API begin with /v1 and are served by `app`, which requires a key. Health checks and pages are answered here without a key.
      if (!req.url?.startsWith('/v1/')) {
        if (health.metrics && isMetricsOfOthers(req)) req.url = ADMIN_METRICS
        if (answerHealth(health, req, res) || answerPage(req, res)) return
      }
      app(req, res)
    },
    config,
    SERVER_BOUNDS,
    { accepts: isSocketRequest, upgrade: (req, socket, head) => sockets.upgrade(req, socket, head) },
  ).catch((error: unknown) => {
    throw portError(error, config)
  })
  showGauges(ports, jobs)
  return {
    name: 'ingress',
    port,
    createdKey: keys.created,
    problems,
    async drain(signal) {
      leave.isAnnounced = true
      const notice = sleep(config.drainNoticeMs, undefined, { signal }).catch(() => {})
      const drained = notice.then(() => drain(jobs, sockets, server, closing, signal))
      await Promise.all([drained, batches?.drain?.(signal)])
    },
    async close() {
      await sockets.close()
      await closeServer(server, AbortSignal.abort())
      await batches?.close()
      await usage?.close()
      await requests?.close()
      await bodies?.close()
      await history?.close()
      await storage.close()
      await fleet?.close()
      await durable?.close()
      await jobs.close()
      await keys.close()
    },
  }
}

/**
 * Whether the first key gets the scope `admin`. The default is true only for a single process, because the callers of a
 * fleet share the first key.
 */
export function isFirstKeyAdmin({ firstKeyAdmin, kafka, databaseUrl }: Config): boolean {
  return firstKeyAdmin ?? (kafka === undefined && databaseUrl === undefined)
}

async function openContext(ports: Ports, keys: ApiKeys, jobs: AttachedJobs, closing: AbortSignal) {
  const { config, log, metrics, models, blobs, store, broker, pauses } = ports
  const { fleet, ...limiting } = openLimits(ports, keys, jobs)
  const [storage, budget] = [openStorage(ports, jobs.boot), openBudget(ports)]
  const durable = await openDurable(ports, jobs, { keys, ...limiting, models, log, closing }, storage)
  const usage = store && new UsageBatches(store.usage, jobs.boot, log)
  const onDropped = (rows: number) => metrics.requestLogDropped.inc(rows)
  const logged = store && config.isRequestLogOn ? { requests: store.requests, log, onDropped } : undefined
  const requests = logged && new RequestBatches(logged)
  const bodies = logged && openBodyBatches(logged)
  const history = store && new HistoryRecorder({ store: store.history, log, gauges: () => workByProject(jobs, store) })
  const conversations = new Conversations(() => jobs.presence.ingresses())
  const endpoints = [...JOB_ENDPOINTS, ...ports.extensions.map(endpointOf)]
  const context: IngressContext = {
    ...{ config, log, metrics, jobs, durable, closing, models, conversations, endpoints, blobs, store, broker, pauses },
    ...{ keys, ...limiting, usage, requests, bodies, history, budget, storage, submitQueue: new SubmitQueue() },
  }
  return { context, fleet }
}

/**
 * Returns the current number of running and waiting calls and durable jobs, per project and for the whole service. Calls are
 * those of this ingress, and durable jobs are those of the whole fleet.
 */
async function workByProject(jobs: AttachedJobs, store: StoreView): Promise<Map<string, Gauges>> {
  const found = new Map<string, { -readonly [Name in keyof Gauges]: number }>()
  const add = (project: string, name: keyof Gauges, count: number) => {
    for (const one of [project, WHOLE_SERVICE]) {
      const gauges = found.get(one) ?? { running: 0, waiting: 0, jobsRunning: 0, jobsWaiting: 0 }
      gauges[name] += count
      found.set(one, gauges)
    }
  }
  for (const { envelope, state } of jobs.all()) add(envelope.tenant, state === 'running' ? 'running' : 'waiting', 1)
  for (const { tenant, state, count } of await store.tenants.depth()) {
    if (state === 'in_progress') add(tenant, 'jobsRunning', count)
    else if (state === 'queued') add(tenant, 'jobsWaiting', count)
  }
  return found
}

async function openAttached({ config, log, metrics, broker, blobs, version, pauses }: Ports): Promise<AttachedJobs> {
  return await AttachedJobs.open({
    ...{ broker, blobs, log, version, pauses },
    workerSuspectedMs: config.workerSuspectedMs,
    workerLostMs: config.workerLostMs,
    startTimeoutMs: config.startTimeoutMs,
    jobsMax: config.jobsMax,
    observer: {
      onWorkerLost: (pool) => metrics.workersLost.inc({ pool }),
      onRetry: (job: AttachedJob, reason) => metrics.retries.inc({ pool: job.envelope.pool, reason }),
      onEnd: (job, outcome, error) => metrics.jobs.inc({ pool: job.envelope.pool, outcome, code: error?.code ?? '' }),
    },
  })
}

/**
 * Returns the data for the health checks of the API port. If METRICS_PORT is set, then the API port serves no metrics, so that API callers cannot
 * read figures about other callers.
 */
function healthOf(ports: Ports, problems: () => string[]): Health {
  const metrics = ports.config.metricsPort === undefined ? ports.metrics : undefined
  return { problems, preparing: () => preparingOf(ports), metrics }
}

/**
 * Binds the port once and releases it. Called before all other parts of the process start, because the ingress is the last
 * part to start. A port conflict would otherwise be detected only after models were downloaded and a key was created.
 *
 * @throws ConfigError if the port is in use, not permitted or not on this machine
 */
export async function requirePort(config: Config): Promise<void> {
  if (config.port !== 0 && config.metricsPort === config.port) {
    throw new ConfigError([
      `METRICS_PORT: ${config.port} is also the PORT of the API. Choose another port, or leave METRICS_PORT unset.`,
    ])
  }
  const server = createServer()
  const { host, port, reusePort } = config
  server.listen({ host, port, reusePort })
  await once(server, 'listening').catch((error: unknown) => {
    throw portError(error, config)
  })
  server.close()
  await once(server, 'close')
}

function portError(error: unknown, { host, port }: Config): unknown {
  const { code } = error as NodeJS.ErrnoException
  if (code === 'ENOTSUP')
    return new ConfigError(['REUSE_PORT: this system cannot share a port. Leave REUSE_PORT unset.'])
  if (code === 'EADDRINUSE') {
    const shared = 'To share the port between several ingresses, set REUSE_PORT=true in each of them.'
    return new ConfigError([
      `PORT: ${port} is in use on ${host}. Stop the other program, or choose another port. ${shared}`,
    ])
  }
  if (code === 'EACCES') {
    return new ConfigError([`PORT: this user cannot listen on ${port}. Choose a port from 1024 on, such as 8080.`])
  }
  if (code !== 'EADDRNOTAVAIL' && code !== 'ENOTFOUND') return error
  return new ConfigError([
    `HOST: ${host} is not an address of this machine. Use 0.0.0.0 for all interfaces, or 127.0.0.1 for this machine only.`,
  ])
}

function openLimits(ports: Ports, keys: ApiKeys, jobs: AttachedJobs) {
  const { config, log, store } = ports
  const counts = ports.openFleetCounts()
  const clock = () => performance.now()
  const fleet = counts && new Fleet({ counts, boot: jobs.boot, log, clock })
  const { limitsOf, limitsOfTenant } = keys
  const ingresses = () => jobs.presence.ingresses()
  const limits = new RateLimits(config, { limitsOf, limitsOfTenant, tenants: store?.tenants, fleet, ingresses })
  store?.tenants.limitRunning(limits)
  const budgets = new Budgets({ ledger: store?.usage, log, limitsOf, fleet, ingresses })
  return { fleet, limits, budgets }
}

function openStorage({ config, store }: Ports, boot: string): StoredQuota {
  const isEmbedded = store !== undefined && config.databaseUrl === undefined
  const directories = [...(config.blobs ? [] : [config.blobDir]), ...(isEmbedded ? [config.dataDir] : [])]
  const floor = openDiskFloor(directories, config.diskFreeBytesMin)
  return new StoredQuota({ bytes: store?.storedBytes, boot, most: config.filesBytesMaxPerProject, floor })
}

function openBudget({ config, metrics }: Ports): ByteBudget {
  const { bodyBudgetBytes: bytesMax } = config
  const budget = new ByteBudget({ bytesMax, keyBytesMax: bytesMax / 2 })
  metrics.gauge('sluice_request_body_bytes', {}, () => budget.held)
  metrics.gauge('sluice_request_body_bytes_max', {}, () => bytesMax)
  return budget
}

async function openDurable(
  ports: Ports,
  jobs: AttachedJobs,
  admitting: AdmittingJobs & { readonly keys: ApiKeys },
  storage: StoredQuota,
): Promise<DurableJobs | undefined> {
  const { config, store, broker, blobs, log } = ports
  if (!store) return undefined
  const { keys } = admitting
  const bounds = {
    jobsMax: config.durableJobsMax,
    jobsMaxPerProject: config.durableJobsMaxPerProject,
    scheduledMax: config.scheduledJobsMax,
    scheduledMaxPerProject: config.scheduledJobsMaxPerProject,
    limitsOf: keys.limitsOfTenant,
    limitsOfKey: keys.limitsOfKey,
  }
  const { jobRetentionMs: retentionMs } = config
  const attached = { presence: () => jobs.presence, callsWaiting: (pool: PoolName) => jobs.callsWaiting(pool) }
  const admit = (spec: NewDurableJob) => admitJob(admitting, () => durable, spec)
  const durable = await DurableJobs.open({
    store,
    broker,
    blobs,
    log,
    ...attached,
    retentionMs,
    bounds,
    admit,
    storage,
  })
  return durable
}

function problemsOf(ports: Ports, jobs: AttachedJobs, isLeaving: boolean): string[] {
  const problems: string[] = []
  if (isLeaving) problems.push('The ingress is draining.')
  const { broker } = ports
  if ((broker.unreachableMs ?? 0) > FAILOVER_MS) problems.push(`The broker (${broker.name}) cannot be reached.`)
  else if (jobs.presence.silenceMs > SILENCE_MS_MAX)
    problems.push(`The broker (${broker.name}) can be reached, but sends no records.`)
  for (const topic of broker.missing ?? [])
    problems.push(`The topic ${topic} is missing in Kafka and could not be created.`)
  return problems
}

/**
 * Refuses new calls with 503 and waits for running calls. The server continues to listen, because otherwise clients
 * would get a refused connection instead of an error. When `signal` aborts, the remaining calls fail.
 */
async function drain(
  jobs: AttachedJobs,
  sockets: Sockets,
  server: Server,
  closing: AbortController,
  signal: AbortSignal,
): Promise<void> {
  closing.abort()
  jobs.isDraining = true
  sockets.announceDrain()
  while ((jobs.size > 0 || sockets.isBusy) && !signal.aborted) await sleep(DRAIN_POLL_MS)
  jobs.failAll(
    new ServiceError('overloaded', 'The server shut down before the answer was ready.', {
      reason: 'draining',
    }).toBody(),
  )
  await sockets.close()
  await closeServer(server, signal.aborted ? AbortSignal.timeout(1_000) : signal)
}
