/**
 * The boot check: makes the topics that are missing, mends those that are set up wrongly where it may, and says everything
 * else that is wrong with a cluster at once, each with the command that mends it. Knows no client: each adapter brings an
 * {@link KafkaAdmin}.
 */
import type { Topic } from '#shared/broker/broker.ts'
import type { KafkaOptions } from './options.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const REPLICAS_DEFAULT = 3
const SESSION_TIMEOUT = 'broker.session.timeout.ms'
/** Kafka's default is 9 s. */
const SESSION_TIMEOUT_MS_WANTED = 6_000
/** Time for the election and for clients to follow, after the session of a dead broker is over. */
const FAILOVER_EXTRA_MS = 3_000
/** A topic of Kafka's own, made with the first use, and the broker settings that say with how many replicas. */
export interface InternalTopic {
  readonly name: string
  readonly settings: readonly string[]
}

const OFFSETS_TOPIC: InternalTopic = { name: '__consumer_offsets', settings: ['offsets.topic.replication.factor'] }
const RETAIN_FOREVER = -1
/**
 * What a topic must take: Kafka's own default, and the least that the records here fit into. A queue's are an envelope with a
 * body of 64 KiB, a channel's many events together (see `batchBytesMax`).
 */
const RECORD_BYTES = { wanted: 1_048_588, queue: 160 * 1024, channel: 960 * 1024 } as const

/** What the boot check asks of a client. Every method throws what the client throws. */
export interface KafkaAdmin {
  brokerCount(): Promise<number>
  /** How many partitions each existing topic has; what does not exist is missing from the map. */
  partitions(topics: readonly string[]): Promise<ReadonlyMap<string, number>>
  topicSettings(topic: string): Promise<ReadonlyMap<string, string>>
  /** The settings of any one broker. */
  brokerSettings(): Promise<ReadonlyMap<string, string>>
  /** Makes a topic. A topic that exists is no error: several processes start at once. */
  createTopic(topic: NewTopic): Promise<void>
  /** Sets settings of a topic, and leaves the others as they are. */
  setTopic(topic: string, settings: Readonly<Record<string, string>>): Promise<void>
  /** Gives a topic so many partitions, more than it has. */
  addPartitions(topic: string, partitions: number): Promise<void>
}

/** A topic to be made. */
export interface NewTopic {
  readonly name: string
  readonly partitions: number
  readonly replicas: number
  readonly settings: Readonly<Record<string, string>>
}

/** What is wrong with a topic, a group or a broker, and what mends it. */
export interface BootProblem {
  readonly problem: string
  readonly fix: string
}

/** Thrown when the cluster is not fit for use: one line a problem, one a fix. */
export class KafkaUnfitError extends Error {
  readonly problems: readonly BootProblem[]

  constructor(problems: readonly BootProblem[]) {
    super(`Kafka cannot be used as it is:\n${problems.map(({ problem, fix }) => `- ${problem}\n  ${fix}`).join('\n')}`)
    this.problems = problems
  }
}

/** Makes what is missing and checks what is there. Gives the problems, in the order of the topics. */
export async function checkTopics(admin: KafkaAdmin, options: KafkaOptions): Promise<BootProblem[]> {
  const names = options.topics.map(({ name }) => options.prefix + name)
  const existing = await admin.partitions(names)
  const replicas = options.replicationFactor ?? Math.min(REPLICAS_DEFAULT, await admin.brokerCount())
  const checks = options.topics.map((topic) => {
    const name = options.prefix + topic.name
    const partitions = existing.get(name)
    if (partitions === undefined) return createMissing(admin, { ...topic, name }, replicas, options)
    return checkExisting(admin, { ...topic, name }, partitions, options)
  })
  return (await Promise.all([...checks, checkInternalTopic(admin, OFFSETS_TOPIC, options)])).flat()
}

async function createMissing(
  admin: KafkaAdmin,
  topic: Topic,
  replicas: number,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  const { name, partitions } = topic
  const settings = topicSettings(topic.retentionMs, replicas)
  try {
    await admin.createTopic({ name, partitions, replicas, settings })
    return []
  } catch (error) {
    const configs = Object.entries(settings).map(([key, value]) => `--config ${key}=${value}`)
    const what = `--create --topic ${name} --partitions ${partitions} --replication-factor ${replicas}`
    const fix = `kafka-topics.sh --bootstrap-server ${options.brokers[0]} ${what} ${configs.join(' ')}`
    return [{ problem: `Topic ${name} does not exist and could not be made: ${messageOf(error)}`, fix }]
  }
}

/** Settings of a new topic. Kafka deletes closed segments only: without a `segment.ms` below it, a short retention would not free anything. */
function topicSettings(retentionMs: number, replicas: number): Record<string, string> {
  return {
    'cleanup.policy': 'delete',
    'max.message.bytes': String(RECORD_BYTES.wanted),
    'retention.ms': String(retentionMs),
    'segment.ms': String(Math.max(MINUTE_MS, Math.min(DAY_MS, Math.floor(retentionMs / 4)))),
    'min.insync.replicas': replicas > 2 ? '2' : '1',
  }
}

/** What is not as it must be, with the command that mends it. */
interface Wrong extends BootProblem {
  /** The topic works all the same: it is said, and no reason not to start. */
  readonly isHarmless?: boolean
}

/** Mends what may be mended; what may not is a problem, or a warning where nothing is lost by it. */
async function checkExisting(
  admin: KafkaAdmin,
  topic: Topic,
  partitions: number,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  const settings = await readable(admin.topicSettings(topic.name), topic.name, options)
  const wrong = wrongSettings(topic, settings, options)
  const values = Object.fromEntries(wrong.map(({ name, value }) => [name, value]))
  const few = partitions < topic.partitions ? [tooFew(topic, partitions, options)] : []
  return [
    ...(await mend(topic.name, few, () => admin.addPartitions(topic.name, topic.partitions), options)),
    ...(await mend(topic.name, wrong, () => admin.setTopic(topic.name, values), options)),
  ]
}

async function mend(
  topic: string,
  wrongs: readonly Wrong[],
  apply: () => Promise<void>,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  if (wrongs.length === 0) return []
  try {
    await apply()
    const before = wrongs.map(({ problem }) => problem).join('; ')
    options.onProblem('a topic was not set up as it has to be, and was altered', { topic, before })
    return []
  } catch (error) {
    const why = `and that could not be changed: ${messageOf(error)}`
    const said = wrongs.map(({ problem, fix, isHarmless }) => ({ problem: `${problem}, ${why}`, fix, isHarmless }))
    for (const { problem, fix, isHarmless } of said) {
      if (isHarmless) options.onProblem('a topic is not set up as it should be', { problem, fix })
    }
    return said.filter(({ isHarmless }) => !isHarmless).map(({ problem, fix }) => ({ problem, fix }))
  }
}

function tooFew(topic: Topic, partitions: number, options: KafkaOptions): Wrong {
  const { name, partitions: needed, partitionsMin = needed } = topic
  return {
    isHarmless: partitions >= partitionsMin,
    problem: `Topic ${name} has ${partitions} partitions, ${needed} are needed`,
    fix: `kafka-topics.sh --bootstrap-server ${options.brokers[0]} --alter --topic ${name} --partitions ${needed}`,
  }
}

interface WrongSetting extends Wrong {
  readonly name: string
  readonly value: string
}

function wrongSettings(topic: Topic, settings: ReadonlyMap<string, string>, options: KafkaOptions): WrongSetting[] {
  const { retentionMs, retentionMsMin = retentionMs, kind } = topic
  const entity = `--entity-type topics --entity-name ${topic.name}`
  const alter = `kafka-configs.sh --bootstrap-server ${options.brokers[0]} ${entity} --alter --add-config`
  const wrongs: WrongSetting[] = []
  const add = (name: string, value: string, problem: string, isHarmless = false) =>
    wrongs.push({
      name,
      value,
      problem: `Topic ${topic.name} ${problem}`,
      fix: `${alter} ${name}=${value}`,
      isHarmless,
    })
  const policy = settings.get('cleanup.policy') ?? 'delete'
  // A compacted topic refuses records without a key, which those of a queue are, and forgets all but the last of a key.
  if (policy !== 'delete')
    add('cleanup.policy', 'delete', `has cleanup.policy=${policy}, which refuses or loses records`)
  const bytes = Number(settings.get('max.message.bytes') ?? RECORD_BYTES.wanted)
  if (bytes < RECORD_BYTES[kind]) {
    const problem = `takes records of ${bytes} bytes at most, ${RECORD_BYTES[kind]} are needed`
    add('max.message.bytes', String(RECORD_BYTES.wanted), problem)
  }
  const keptMs = Number(settings.get('retention.ms') ?? RETAIN_FOREVER)
  if (keptMs !== RETAIN_FOREVER && keptMs < retentionMs) {
    const problem = `keeps records for ${keptMs} ms, ${retentionMs} are needed`
    add('retention.ms', String(retentionMs), problem, keptMs >= retentionMsMin)
  }
  return wrongs
}

/** Settings that this client may not read are not checked, and that is said. */
export async function readable(
  settings: Promise<ReadonlyMap<string, string>>,
  what: string,
  options: KafkaOptions,
): Promise<ReadonlyMap<string, string>> {
  try {
    return await settings
  } catch (error) {
    options.onProblem('Kafka settings could not be checked', { what, error: messageOf(error) })
    return new Map()
  }
}

/** What keeps calls waiting for longer than need be when a broker dies: they wait until another leads its partitions. */
export function lateFailover(brokers: number, settings: ReadonlyMap<string, string>): BootProblem | undefined {
  const value = Number(settings.get(SESSION_TIMEOUT) ?? 0)
  if (brokers < 2 || value <= SESSION_TIMEOUT_MS_WANTED) return undefined
  const seconds = `${(value + FAILOVER_EXTRA_MS) / 1_000} s`
  return {
    problem: `${SESSION_TIMEOUT} is ${value}: when a broker dies, calls to its partitions wait for up to ${seconds}`,
    fix: `Set ${SESSION_TIMEOUT}=${SESSION_TIMEOUT_MS_WANTED} and broker.heartbeat.interval.ms=1000 in server.properties of brokers and controllers, and restart them one by one`,
  }
}

/** Warns of {@link lateFailover} at the start. */
export async function warnOfLateFailover(admin: KafkaAdmin, options: KafkaOptions): Promise<void> {
  const settings = await readable(admin.brokerSettings(), 'broker', options)
  const found = lateFailover(await admin.brokerCount(), settings)
  if (found) options.onProblem('Kafka replaces a dead broker late', { ...found })
}

/** A topic of Kafka's own that asks for more replicas than there are brokers is never made, and groups hang. */
export async function checkInternalTopic(
  admin: KafkaAdmin,
  topic: InternalTopic,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  if ((await admin.partitions([topic.name])).has(topic.name)) return []
  const brokers = await admin.brokerCount()
  const settings = await readable(admin.brokerSettings(), 'broker', options)
  return topic.settings
    .filter((name) => Number(settings.get(name) ?? 0) > brokers)
    .map((name) => ({
      problem: `The brokers' ${name} is ${settings.get(name)}, but there are ${brokers}: groups would hang`,
      fix: `Set ${name}=${brokers} in server.properties and restart, or add brokers`,
    }))
}

/** What an error says; of several the first. */
export function messageOf(error: unknown): string {
  const causes = (error as AggregateError | null)?.errors
  const [cause] = Array.isArray(causes) ? causes : []
  return cause ? messageOf(cause) : error instanceof Error ? error.message : String(error)
}
