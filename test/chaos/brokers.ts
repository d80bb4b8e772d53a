/**
 * Kills, freezes and restarts the brokers of a Kafka with three nodes, TLS and SASL, under load of attached calls and durable jobs.
 *
 * Each fault hits the node that currently has one of four roles. `jobs` and `replies` each mean the leader of the partition with the most records in
 * the topic of that name. `coordinator` is the coordinator of the workers' consumer group, and `controller` the leader of the metadata quorum. The
 * next fault starts when all replicas are in sync again.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection, describeQuorumV2 } from '@platformatic/kafka'
import type { Admin } from 'kafkajs'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { classicGroup } from '#shared/broker/kafka/options.ts'
import { type SecureKafka, startSecureKafka } from '../support/processes/secure-kafka.ts'
import { until } from '../support/stack.ts'
import { checkHistory, describeSmallest } from './check/check.ts'
import { countUnfinished, readFinalState } from './check/final-state.ts'
import { History, readHistory } from './check/history.ts'
import { startWitness } from './check/witness.ts'
import { startCluster } from './cluster.ts'
import { type Figures, figuresOf } from './figures.ts'
import { startAttached, WRONG } from './load/attached.ts'
import { runLoad } from './load/load.ts'
import { type PlannedJob, planJob } from './load/workload.ts'

const NODES = [1, 2, 3]
const JOBS = 'jobs.inference'
const REPLIES = 'replies'
const CALLERS = 12
const JOBS_PER_S = 4
/** Settings of the brokers, as docs/operate/operations.md recommends them for production. */
const SETTINGS = [
  'default.replication.factor=3',
  'min.insync.replicas=2',
  'broker.session.timeout.ms=3000',
  'broker.heartbeat.interval.ms=500',
  'controller.quorum.fetch.timeout.ms=1000',
  '',
].join('\n')

export type Leader = 'jobs' | 'replies' | 'coordinator' | 'controller'

/** A fault of the brokers: a signal to the node with a leader role, or `roll`, which restarts all nodes one after the other. */
export type BrokerFault = { readonly signal: 'SIGKILL' | 'SIGSTOP'; readonly leader: Leader } | 'roll'

export interface BrokerRun {
  readonly client: 'share' | 'classic'
  readonly faults: readonly BrokerFault[]
  /** Time after which a killed broker is restarted, or a frozen broker continues. */
  readonly awayMs: number
  /** Pause between the end of a fault and the next one, in which late effects of the fault are observed. */
  readonly echoMs: number
  /** Empty directory to which the run writes its history and the logs of the processes. */
  readonly directory: string
  readonly onProgress: (line: string) => void
}

export interface BrokerResult {
  readonly figures: Figures
  readonly story: string
  /** Descriptions of attached calls that were answered with status 200, but with another text than expected. */
  readonly wrong: readonly string[]
  /** Attached calls that ended with an error. */
  readonly failed: readonly string[]
  readonly silentMsMax: number
  readonly waitMsP99: number
}

export async function runBrokerFaults(run: BrokerRun): Promise<BrokerResult> {
  const history = await History.open(run.directory, 1)
  await using witness = await startWitness(history)
  await using kafka = await startSecureKafka(NODES.length, SETTINGS)
  const settings = {
    KAFKA_CLIENT: run.client,
    KAFKA_SSL_CA: kafka.files.ca,
    KAFKA_SSL_CERT: kafka.files.cert,
    KAFKA_SSL_KEY: kafka.files.key,
    KAFKA_SASL_MECHANISM: 'SCRAM-SHA-512',
    KAFKA_USERNAME: 'sluice',
    KAFKA_PASSWORD: 'sluice',
  }
  const fleet = { ingress: 2, inference: 2, research: 0, scheduler: 2 }
  const options = { history, fleet, witness: witness.url, kafka: { address: kafka.address, settings } }
  await using cluster = await startCluster(options)
  const over = new AbortController()
  const clients = { history, ingresses: cluster.ingresses, signal: over.signal }
  const durationMs = run.faults.reduce((sum, fault) => sum + (fault === 'roll' ? 3 : 1) * (run.awayMs + run.echoMs), 0)
  const jobs = Array.from({ length: Math.ceil((durationMs / 1_000) * JOBS_PER_S) }, (_, i) => plainJob(i))
  const attached = startAttached(cluster.ingresses, CALLERS)
  await until(() => attached.calls.length > 2 * CALLERS, { withinMs: 60_000 })
  const begun = { calls: attached.calls.length }
  const loading = runLoad(clients, { jobs, durationMs, onAccepted: () => undefined })
  for (const fault of run.faults) {
    const first = attached.calls.length
    const from = Date.now()
    await inject(fault, kafka, run, history)
    const own = attached.calls.slice(first)
    const silentMs = Math.max(0, ...own.map((call) => call.silentMs))
    const failed = own.filter(({ problem }) => problem).length
    const name = fault === 'roll' ? 'rolling restart' : `${fault.signal} of the leader of ${fault.leader}`
    const tookS = Math.round((Date.now() - from) / 1_000)
    run.onProgress(`${name}: ${own.length} calls in ${tookS} s, ${failed} failed, longest silence ${silentMs} ms`)
  }
  const { watched } = await loading
  const calls = (await attached.stop()).slice(begun.calls)
  await until(async () => (await countUnfinished(cluster.database)) === 0, { withinMs: 120_000 })
  await Promise.race([watched, sleep(30_000)])
  for await (const entry of readFinalState(cluster.database)) history.add('store', entry)
  over.abort()
  await history.close()
  const records = await readHistory(run.directory)
  const verdict = checkHistory(records)
  const waits = records.flatMap((entry) =>
    entry.type === 'row' && entry.started_at_wall_ms !== null
      ? [entry.started_at_wall_ms - entry.created_at_wall_ms]
      : [],
  )
  return {
    figures: figuresOf(verdict, records),
    story: describeSmallest(verdict),
    wrong: calls.flatMap(({ problem }) => (problem.startsWith(WRONG) ? [problem] : [])),
    failed: calls.flatMap(({ problem }) => (problem && !problem.startsWith(WRONG) ? [problem] : [])),
    silentMsMax: Math.max(...calls.map(({ silentMs }) => silentMs)),
    waitMsP99: waits.toSorted((a, b) => a - b)[Math.floor(waits.length * 0.99)] ?? 0,
  }
}

/**
 * Returns a job without a scheduled start, a cancel, a duplicate submission or a scripted failure. If such a job is late, then a fault is the
 * cause.
 */
function plainJob(number: number): PlannedJob {
  const { runInMs, cancelAfterMs, ...job } = planJob(1, number)
  const body = JSON.parse(JSON.stringify(job.call.body).replace(' fail=overloaded failures=1', ''))
  return {
    ...job,
    call: { ...job.call, body },
    priority: 'normal',
    isDoubled: false,
    hangUps: [],
    expect: { ...job.expect, is_cancelled: false },
  }
}

async function inject(fault: BrokerFault, kafka: SecureKafka, run: BrokerRun, history: History): Promise<void> {
  const note = (phase: 'begin' | 'end', kind: string, node: number) =>
    history.add('faults', { type: 'fault', phase, kind, target: `broker-${node}` })
  if (fault === 'roll') {
    for (const node of NODES) {
      note('begin', 'roll', node)
      await kafka.nodes.down('SIGTERM', node)
      await kafka.nodes.resume(node)
      note('end', 'roll', node)
      await untilInSync(kafka)
    }
    return await sleep(run.echoMs)
  }
  const node = await leaderOf(fault.leader, kafka, run.client)
  const isKill = fault.signal === 'SIGKILL'
  note('begin', isKill ? 'kill' : 'freeze', node)
  if (isKill) await kafka.nodes.down('SIGKILL', node)
  else kafka.nodes.signal('SIGSTOP', node)
  await sleep(run.awayMs)
  if (isKill) await kafka.nodes.resume(node)
  else kafka.nodes.signal('SIGCONT', node)
  note('end', isKill ? 'kill' : 'freeze', node)
  await untilInSync(kafka)
  await sleep(run.echoMs)
}

/** Returns the number of the node that currently has a leader role. */
async function leaderOf(leader: Leader, kafka: SecureKafka, client: 'share' | 'classic'): Promise<number> {
  const cluster = new KafkaCluster(kafka.options)
  try {
    await cluster.follow([JOBS, REPLIES])
    if (leader === 'jobs') return cluster.leader(JOBS, await busiest(JOBS, kafka))
    if (leader === 'replies') return cluster.leader(REPLIES, await busiest(REPLIES, kafka))
    if (leader === 'coordinator') return await cluster.coordinator(client === 'share' ? JOBS : classicGroup(JOBS))
  } finally {
    await cluster.close()
  }
  const { sasl, tls, brokers } = kafka.options
  const connection = new Connection('test', { ...(tls && { tls: { ...tls } }), ...(sasl && { sasl: { ...sasl } }) })
  const [host = '', port] = (brokers[0] ?? '').split(':')
  await connection.connect(host, Number(port))
  const log = [{ topicName: '__cluster_metadata', partitions: [{ partitionIndex: 0 }] }]
  const { topics } = await describeQuorumV2.api.async(connection, log)
  await connection.close()
  return topics[0]?.partitions[0]?.leaderId ?? 1
}

async function busiest(topic: string, kafka: SecureKafka): Promise<number> {
  const offsets = await withAdmin(kafka, (admin) => admin.fetchTopicOffsets(topic))
  return offsets.toSorted((a, b) => Number(b.high) - Number(a.high))[0]?.partition ?? 0
}

async function withAdmin<R>(kafka: SecureKafka, use: (admin: Admin) => Promise<R>): Promise<R> {
  const admin = createKafkaJs(kafka.options).admin()
  try {
    await admin.connect()
    return await use(admin)
  } finally {
    await admin.disconnect()
  }
}

/** Waits until all replicas of all topics are in sync. */
async function untilInSync(kafka: SecureKafka): Promise<void> {
  const isInSync = async () => {
    const { topics } = await withAdmin(kafka, (admin) => admin.fetchTopicMetadata())
    return topics.every(({ partitions }) => partitions.every(({ isr, replicas }) => isr.length === replicas.length))
  }
  await until(() => isInSync().catch(() => false), { withinMs: 60_000 })
}
