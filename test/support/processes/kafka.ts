/**
 * Finds a real Kafka for tests. The first of these that exists is used: the one in KAFKA_BROKERS; one in Docker; one that deploy/kafka-local.sh
 * starts with Java. If there is none, then the tests that need Kafka are skipped and the reason is printed.
 */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import kafkajs, { type Admin } from 'kafkajs'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'

const run = promisify(execFile)
const SCRIPT = join(import.meta.dirname, '../../../deploy/kafka-local.sh')
/** Kafka 4.2, the first version with share groups enabled. */
const IMAGE = 'confluentinc/cp-kafka:8.2.0'
const DOCKER_SOCKET = '/var/run/docker.sock'
/** The timeout covers the first start, which downloads 44 MB and formats storage. Later starts take seconds. */
const COMMAND_TIMEOUT_MS = 120_000

/** Limits the compiler of the JVM. A broker that runs for a minute would otherwise spend most of its CPU time in the optimising compiler. */
export const SHORT_LIVED = { KAFKA_JAVA: '-XX:TieredStopAtLevel=1' }

export interface TestKafka {
  /** Addresses of the brokers, as `host:port`, separated by commas. */
  readonly address: string
  stop(): Promise<void>
}

/** A Kafka that only one test uses, so that the test may stop it. */
export interface LocalKafka extends TestKafka, AsyncDisposable {
  /** Stops one node (numbered from 1), or all nodes. Ports and data are kept. `SIGKILL` simulates a crash. */
  down(signal: 'SIGTERM' | 'SIGKILL', node?: number): Promise<void>
  /** Sends SIGSTOP or SIGCONT to one node (numbered from 1). */
  signal(name: 'SIGSTOP' | 'SIGCONT', node: number): void
  /** Restarts one node, or all. */
  resume(node?: number): Promise<void>
  /** Restarts Kafka with an empty disk at the same address, as after the loss of all data. */
  startEmpty(): Promise<void>
}

/**
 * Finds or starts a broker.
 *
 * @returns The broker, or the reason why there is none
 */
export async function findKafka(): Promise<TestKafka | string> {
  const given = process.env.KAFKA_BROKERS
  if (given) return { address: given, stop: async () => undefined }
  const inDocker = await startInDocker()
  if (typeof inDocker !== 'string') return inDocker
  const missing = await whyNoLocalKafka()
  if (missing !== undefined) return `${inDocker}; ${missing}`
  return await startLocalKafka()
}

/** Reason why deploy/kafka-local.sh cannot start a broker here; undefined if it can. */
export async function whyNoLocalKafka(): Promise<string | undefined> {
  try {
    await run(SCRIPT, ['check'], { timeout: COMMAND_TIMEOUT_MS })
    return undefined
  } catch (error) {
    return String((error as { stderr?: string }).stderr || error).trim()
  }
}

/**
 * Starts Kafka in a new run directory. Disposing stops it and deletes the directory.
 *
 * @param settings Additional lines of server.properties.
 * @param quorum Number of nodes that are controllers, from node 1.
 */
export async function startLocalKafka(nodes = 1, settings = '', quorum = 1): Promise<LocalKafka> {
  const runDir = await mkdtemp(join(tmpdir(), 'sluice-kafka-'))
  const size = { KAFKA_NODES: String(nodes), KAFKA_QUORUM: String(quorum) }
  const env = { ...SHORT_LIVED, ...process.env, KAFKA_RUN_DIR: runDir, ...size, KAFKA_EXTRA: settings }
  const script = async (command: string, node?: number, more: Record<string, string> = {}) => {
    const args = node === undefined ? [command] : [command, String(node)]
    return (await run(SCRIPT, args, { env: { ...env, ...more }, timeout: COMMAND_TIMEOUT_MS })).stdout
  }
  const address = (await script('start')).trim()
  const stop = async () => void (await script('clean'))
  return {
    address,
    stop,
    down: async (signal, node) => void (await script(signal === 'SIGKILL' ? 'kill' : 'stop', node)),
    signal: (name, node) => void process.kill(Number(readFileSync(join(runDir, `${node}/pid`), 'utf8')), name),
    resume: async (node) => void (await script('resume', node)),
    startEmpty: async () => void (await script('start', undefined, { KAFKA_PORT: address.split(':')[1] ?? '' })),
    [Symbol.asyncDispose]: stop,
  }
}

/** Sets some settings of a topic, and resets all others to the defaults of the broker. */
export async function alterTopic(address: string, name: string, settings: Record<string, string>): Promise<void> {
  const configEntries = Object.entries(settings).map(([key, value]) => ({ name: key, value }))
  const type = kafkajs.ConfigResourceTypes.TOPIC
  await withAdmin(address, (admin) =>
    admin.alterConfigs({ validateOnly: false, resources: [{ type, name, configEntries }] }),
  )
}

/** Deletes a topic. Resolves when the controller has accepted the request; the brokers may delete the topic a little later. */
export async function deleteTopic(address: string, name: string): Promise<void> {
  await withAdmin(address, (admin) => admin.deleteTopics({ topics: [name] }))
}

/** Creates a topic, as an operator does by hand. */
export async function createTopic(address: string, topic: string, numPartitions: number): Promise<void> {
  await withAdmin(address, (admin) => admin.createTopics({ topics: [{ topic, numPartitions }], waitForLeaders: false }))
}

export async function topicSettings(address: string, name: string): Promise<Record<string, string>> {
  const type = kafkajs.ConfigResourceTypes.TOPIC
  const { resources } = await withAdmin(address, (admin) =>
    admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name }] }),
  )
  const entries = resources[0]?.configEntries ?? []
  return Object.fromEntries(entries.map(({ configName, configValue }) => [configName, configValue]))
}

const TEST_CLIENT = { client: 'classic', prefix: '', topics: [], clientId: 'test', onProblem: () => undefined } as const

async function withAdmin<R>(address: string, ask: (admin: Admin) => Promise<R>): Promise<R> {
  const admin = createKafkaJs({ ...TEST_CLIENT, brokers: address.split(',') }).admin()
  await admin.connect()
  try {
    return await ask(admin)
  } finally {
    await admin.disconnect()
  }
}

async function startInDocker(): Promise<TestKafka | string> {
  if (!process.env.DOCKER_HOST && !existsSync(DOCKER_SOCKET)) return 'no Docker'
  try {
    const { KafkaContainer } = await import('@testcontainers/kafka')
    const container = await new KafkaContainer(IMAGE)
      .withEnvironment({
        // Kafka's default of three replicas needs three brokers. With fewer brokers, share groups hang without an error.
        KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR: '1',
        KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR: '1',
        KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR: '1',
        KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS: '0',
      })
      .start()
    const address = `${container.getHost()}:${container.getMappedPort(9093)}`
    return { address, stop: async () => void (await container.stop()) }
  } catch (error) {
    return `Docker does not run ${IMAGE}: ${error instanceof Error ? error.message : String(error)}`
  }
}
