/**
 * The boot check of a cluster creates missing topics and corrects wrong settings if permitted. All other problems are reported together, each with
 * the command that fixes it. Each adapter provides a {@link KafkaAdmin}.
 */
import type { Topic } from '#shared/broker/broker.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { type KafkaOptions, partitionsNeeded, pause } from './options.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const REPLICAS_DEFAULT = 3
const SESSION_TIMEOUT = 'broker.session.timeout.ms'
/** Recommended session timeout of brokers, in ms. Kafka's default is 9 s. */
const SESSION_TIMEOUT_MS_WANTED = 6_000
/** Time in ms from the expiry of a dead broker's session until clients use the new leaders. */
const FAILOVER_EXTRA_MS = 3_000
/** An internal topic, which Kafka creates at the first use. `settings` are the broker settings that determine its number of replicas. */
export interface InternalTopic {
  readonly name: string
  readonly settings: readonly string[]
}

const OFFSETS_TOPIC: InternalTopic = { name: '__consumer_offsets', settings: ['offsets.topic.replication.factor'] }
const RETAIN_FOREVER = -1
/**
 * Maximum record size of a topic, in bytes: Kafka's default, and the minimum that queues and channels require. A queue record is an envelope with a
 * body of up to 64 KiB. A channel record contains many events (see `batchBytesMax`).
 */
const RECORD_BYTES = { wanted: 1_048_588, queue: 160 * 1024, channel: 960 * 1024 } as const

export interface KafkaAdmin {
  brokerCount(): Promise<number>
  partitions(topics: readonly string[]): Promise<ReadonlyMap<string, number>>
  topicSettings(topic: string): Promise<ReadonlyMap<string, string>>
  brokerSettings(): Promise<ReadonlyMap<string, string>>
  /** Creates a topic. An existing topic is not an error, because several processes may start at the same time. */
  createTopic(topic: NewTopic): Promise<void>
  setTopic(topic: string, settings: Readonly<Record<string, string>>): Promise<void>
  addPartitions(topic: string, partitions: number): Promise<void>
}

export interface NewTopic {
  readonly name: string
  readonly partitions: number
  readonly replicas: number
  readonly settings: Readonly<Record<string, string>>
}

export interface BootProblem {
  readonly problem: string
  readonly remediation: string
}

/** Thrown if the cluster cannot be used. The message has one line per problem, each followed by its remedy. */
export class KafkaUnsuitableError extends Error {
  readonly problems: readonly BootProblem[]

  constructor(problems: readonly BootProblem[]) {
    super(
      `Kafka cannot be used as it is:\n${problems.map(({ problem, remediation }) => `- ${problem}\n  ${remediation}`).join('\n')}`,
    )
    this.problems = problems
  }
}

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
    const remediation = `kafka-topics.sh --bootstrap-server ${options.brokers[0]} ${what} ${configs.join(' ')}`
    return [{ problem: `Topic ${name} does not exist and could not be created: ${messageOf(error)}`, remediation }]
  }
}

/** Returns the settings of a new topic. Kafka deletes only closed segments, so `segment.ms` must not exceed the retention. */
function topicSettings(retentionMs: number, replicas: number): Record<string, string> {
  return {
    'cleanup.policy': 'delete',
    'max.message.bytes': String(RECORD_BYTES.wanted),
    'retention.ms': String(retentionMs),
    'segment.ms': String(Math.max(MINUTE_MS, Math.min(DAY_MS, Math.floor(retentionMs / 4)))),
    'min.insync.replicas': replicas > 2 ? '2' : '1',
  }
}

interface Mismatch extends BootProblem {
  /** If true, then the topic works despite the problem. The problem is therefore logged, and does not prevent the start. */
  readonly isHarmless?: boolean
}

/**
 * Checks an existing topic and corrects its settings if permitted. Other problems are returned, or logged as a warning
 * if no records are lost.
 */
async function checkExisting(
  admin: KafkaAdmin,
  topic: Topic,
  partitions: number,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  const settings = await readable(admin.topicSettings(topic.name), topic.name, options)
  const wrong = settingMismatches(topic, settings, options)
  const values = Object.fromEntries(wrong.map(({ name, value }) => [name, value]))
  const few = partitions < topic.partitions ? [missingBrokers(topic, partitions, options)] : []
  return [
    ...(await correct(topic.name, few, () => admin.addPartitions(topic.name, topic.partitions), options)),
    ...(await correct(topic.name, wrong, () => admin.setTopic(topic.name, values), options)),
  ]
}

async function correct(
  topic: string,
  mismatches: readonly Mismatch[],
  apply: () => Promise<void>,
  options: KafkaOptions,
): Promise<BootProblem[]> {
  if (mismatches.length === 0) return []
  try {
    await apply()
    const before = mismatches.map(({ problem }) => problem).join('; ')
    options.onProblem('Kafka topic settings corrected', { topic, before })
    return []
  } catch (error) {
    const why = `and that could not be changed: ${messageOf(error)}`
    const problems = mismatches.map(({ problem, remediation, isHarmless }) => ({
      problem: `${problem}, ${why}`,
      remediation,
      isHarmless,
    }))
    for (const { problem, remediation, isHarmless } of problems) {
      if (isHarmless)
        options.onProblem('Kafka topic settings are not as recommended and could not be changed', {
          problem,
          remediation,
        })
    }
    return problems
      .filter(({ isHarmless }) => !isHarmless)
      .map(({ problem, remediation }) => ({ problem, remediation }))
  }
}

function missingBrokers(topic: Topic, partitions: number, options: KafkaOptions): Mismatch {
  const { name, partitions: needed, partitionsMin = needed } = topic
  return {
    isHarmless: partitions >= partitionsMin,
    problem: `Topic ${name} has ${partitions} partitions, but ${needed} are needed`,
    remediation: `kafka-topics.sh --bootstrap-server ${options.brokers[0]} --alter --topic ${name} --partitions ${needed}`,
  }
}

interface SettingMismatch extends Mismatch {
  readonly name: string
  readonly value: string
}

function settingMismatches(
  topic: Topic,
  settings: ReadonlyMap<string, string>,
  options: KafkaOptions,
): SettingMismatch[] {
  const { retentionMs, retentionMsMin = retentionMs, kind } = topic
  const entity = `--entity-type topics --entity-name ${topic.name}`
  const alter = `kafka-configs.sh --bootstrap-server ${options.brokers[0]} ${entity} --alter --add-config`
  const mismatches: SettingMismatch[] = []
  const add = (name: string, value: string, problem: string, isHarmless = false) =>
    mismatches.push({
      name,
      value,
      problem: `Topic ${topic.name} ${problem}`,
      remediation: `${alter} ${name}=${value}`,
      isHarmless,
    })
  const policy = settings.get('cleanup.policy') ?? 'delete'
  // A compacted topic refuses records without a key, such as those of a queue, and deletes all but the last record of a key.
  if (policy !== 'delete')
    add('cleanup.policy', 'delete', `has cleanup.policy=${policy}, which refuses or loses records`)
  const bytes = Number(settings.get('max.message.bytes') ?? RECORD_BYTES.wanted)
  if (bytes < RECORD_BYTES[kind]) {
    const problem = `accepts records of at most ${bytes} bytes, but ${RECORD_BYTES[kind]} are needed`
    add('max.message.bytes', String(RECORD_BYTES.wanted), problem)
  }
  const keptMs = Number(settings.get('retention.ms') ?? RETAIN_FOREVER)
  if (keptMs !== RETAIN_FOREVER && keptMs < retentionMs) {
    const problem = `retains records for ${keptMs} ms, but ${retentionMs} are needed`
    add('retention.ms', String(retentionMs), problem, keptMs >= retentionMsMin)
  }
  return mismatches
}

/** Reads settings. If this client lacks the permission, then the check is skipped and a warning is logged. */
export async function readable(
  settings: Promise<ReadonlyMap<string, string>>,
  what: string,
  options: KafkaOptions,
): Promise<ReadonlyMap<string, string>> {
  try {
    return await settings
  } catch (error) {
    options.onProblem('Kafka settings could not be read; they are not checked', { what, error: messageOf(error) })
    return new Map()
  }
}

/**
 * Returns a warning if the session timeout of brokers is too long. After the death of a broker, calls to its partitions wait for this time until
 * other brokers lead them.
 */
export function lateFailover(brokers: number, settings: ReadonlyMap<string, string>): BootProblem | undefined {
  const value = Number(settings.get(SESSION_TIMEOUT) ?? 0)
  if (brokers < 2 || value <= SESSION_TIMEOUT_MS_WANTED) return undefined
  const seconds = `${(value + FAILOVER_EXTRA_MS) / 1_000} s`
  return {
    problem: `${SESSION_TIMEOUT} is ${value}: when a broker dies, calls to its partitions wait for up to ${seconds}`,
    remediation: `Set ${SESSION_TIMEOUT}=${SESSION_TIMEOUT_MS_WANTED} and broker.heartbeat.interval.ms=1000 in server.properties of brokers and controllers, and restart them one by one`,
  }
}

export async function warnOfLateFailover(admin: KafkaAdmin, options: KafkaOptions): Promise<void> {
  const settings = await readable(admin.brokerSettings(), 'broker', options)
  const found = lateFailover(await admin.brokerCount(), settings)
  if (found) options.onProblem('Kafka settings delay the failover from a dead broker', { ...found })
}

/**
 * Checks the replicas of an internal topic. If more replicas than brokers are required, then Kafka never creates the
 * topic, and groups hang.
 */
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
      remediation: `Set ${name}=${brokers} in server.properties and restart, or add brokers`,
    }))
}

/** Whether Kafka denied an operation for lack of an ACL. */
export function isDenied(message: unknown): boolean {
  return /authorization failed|not authorized/i.test(String(message))
}

/** Command that permits operations on groups to the user of this process. `NAME` stands for the user, because user names are not logged. */
export function permitGroups({ brokers, prefix }: KafkaOptions, operations: readonly string[]): string {
  const names = prefix === '' ? `--group '*'` : `--group ${prefix} --resource-pattern-type prefixed`
  const wanted = operations.map((operation) => `--operation ${operation}`).join(' ')
  return `kafka-acls.sh --bootstrap-server ${brokers[0]} --add --allow-principal User:NAME ${wanted} ${names}`
}

/** If Kafka denied access to a group, returns a log field with the command that grants the access. */
export function groupRemedy(error: unknown, options: KafkaOptions): { readonly remediation?: string } {
  const message = messageOf(error)
  return /group/i.test(message) && isDenied(message) ? { remediation: permitGroups(options, ['Read']) } : {}
}

export function messageOf(error: unknown): string {
  const causes = (error as AggregateError | null)?.errors
  const [cause] = Array.isArray(causes) ? causes : []
  return cause ? messageOf(cause) : error instanceof Error ? error.message : String(error)
}

const RETRY: Backoff = { baseMs: 500, maxMs: 10_000 }
const KNOWN_TIMEOUT_MS = 5_000
const KNOWN_INTERVAL_MS = 50
const WARN_INTERVAL_MS = 60_000

/** Connects to the cluster without cached metadata, passes the connection to `use`, and closes it. */
type Inspect<Admin> = (use: (admin: Admin) => Promise<void>) => Promise<void>

/**
 * Recreates topics that disappear while the process runs. An operator, a clean-up job or a cluster that lost its data may delete a topic in use.
 * Kafka then answers every request for the topic with an error that clients treat as transient. Without this class, a missing topic would look like a
 * slow broker forever.
 *
 * A topic is `lacking` after Kafka has reported that it does not exist. States: `present → lacking → present`, or `lacking → missing` if the boot
 * check cannot create the topic, for example without the permission. The creation of a missing topic is retried forever, with the delays of
 * {@link RETRY}, because the remedy is outside the process.
 */
export class TopicKeeper<Admin extends KafkaAdmin> {
  readonly #inspect: Inspect<Admin>
  readonly #check: (admin: Admin) => Promise<BootProblem[]>
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  #recreating: Promise<void> | undefined
  #lacking: readonly string[] = []
  #missing: readonly string[] = []
  #warnedAtMs = Number.NEGATIVE_INFINITY

  /**
   * @param inspect Opens a new connection for the check.
   * @param check Boot check, which creates missing topics.
   */
  constructor(inspect: Inspect<Admin>, check: (admin: Admin) => Promise<BootProblem[]>, options: KafkaOptions) {
    this.#inspect = inspect
    this.#check = check
    this.#options = options
  }

  get missing(): readonly string[] {
    return this.#missing
  }

  verify(): void {
    if (this.#closing.signal.aborted) return
    this.#recreating ??= this.#recreateMissing().finally(() => {
      this.#recreating = undefined
    })
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#recreating
  }

  async #recreateMissing(): Promise<void> {
    const { signal } = this.#closing
    for (let tries = 1; !signal.aborted; tries++) {
      try {
        await this.#inspect((admin) => this.#make(admin))
        this.#missing = []
        this.#warnedAtMs = Number.NEGATIVE_INFINITY
        return
      } catch (error) {
        if (!signal.aborted) this.#failed(error)
      }
      await pause(backoffMs(Math.min(tries, 10), RETRY, Math.random()), signal)
    }
  }

  async #make(admin: Admin): Promise<void> {
    const { topics, prefix, onProblem } = this.#options
    const names = topics.map(({ name }) => prefix + name)
    const found = await admin.partitions(names)
    this.#lacking = names.filter((name) => (found.get(name) ?? 0) < partitionsNeeded(this.#options, name))
    if (this.#lacking.length === 0) return
    const problems = await this.#check(admin)
    if (problems.length > 0) throw new KafkaUnsuitableError(problems)
    await this.#untilKnown(admin, names)
    onProblem('missing Kafka topics created again', { topics: this.#lacking })
  }

  /** Waits until every broker has the new topics. A broker that lacks a topic would respond as if the topic had been deleted again. */
  async #untilKnown(admin: Admin, names: readonly string[]): Promise<void> {
    const timeout = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(KNOWN_TIMEOUT_MS)])
    while (!timeout.aborted && (await admin.partitions(names)).size < names.length) {
      await pause(KNOWN_INTERVAL_MS, timeout)
    }
  }

  /** Handles a failed check. If Kafka is unreachable, then the state of the topics is unknown and stays unchanged. */
  #failed(error: unknown): void {
    const { prefix, onProblem } = this.#options
    if (!(error instanceof KafkaUnsuitableError)) return
    this.#missing = this.#lacking.map((name) => name.slice(prefix.length))
    const nowMs = performance.now()
    if (nowMs - this.#warnedAtMs < WARN_INTERVAL_MS) return
    this.#warnedAtMs = nowMs
    const remediation = error.problems.map((problem) => problem.remediation).join('; ')
    onProblem('Kafka topics are missing and could not be created; calls are refused', {
      topics: this.#lacking,
      error: messageOf(error),
      remediation,
    })
  }
}
