/**
 * Recreates topics that disappear while the process runs. An operator, a clean-up job or a cluster that lost its data may delete a topic in use.
 * Kafka then answers every request for the topic with an error that clients call transient. So a missing topic would look like a slow broker, forever.
 *
 * States: `present → lacking → present`, or `lacking → missing` if the boot check cannot create the topic, because it lacks a
 * permission or enough brokers. A missing topic is retried forever, at most {@link RETRY} apart, because its remedy is outside
 * the process.
 */
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { type KafkaOptions, partitionsNeeded } from './options.ts'
import { pause } from './supervision.ts'
import { type BootProblem, type KafkaAdmin, KafkaUnsuitableError, messageOf } from './topics.ts'

const RETRY: Backoff = { baseMs: 500, maxMs: 10_000 }
const KNOWN_TIMEOUT_MS = 5_000
const KNOWN_INTERVAL_MS = 50
const WARN_INTERVAL_MS = 60_000

/** Opens a new connection to the cluster without cached metadata, passes it to `use`, and closes it. */
type Inspect<Admin> = (use: (admin: Admin) => Promise<void>) => Promise<void>

export class TopicKeeper<Admin extends KafkaAdmin> {
  readonly #inspect: Inspect<Admin>
  readonly #check: (admin: Admin) => Promise<BootProblem[]>
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  #keeping: Promise<void> | undefined
  #lacking: readonly string[] = []
  #missing: readonly string[] = []
  #warnedAtMs = Number.NEGATIVE_INFINITY

  /** @param check Boot check, which creates missing topics. */
  constructor(look: Inspect<Admin>, check: (admin: Admin) => Promise<BootProblem[]>, options: KafkaOptions) {
    this.#inspect = look
    this.#check = check
    this.#options = options
  }

  get missing(): readonly string[] {
    return this.#missing
  }

  verify(): void {
    if (this.#closing.signal.aborted) return
    this.#keeping ??= this.#keep().finally(() => {
      this.#keeping = undefined
    })
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#keeping
  }

  async #keep(): Promise<void> {
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
    onProblem('missing Kafka topics recreated', { topics: this.#lacking })
  }

  /** Waits until all brokers have the new topics. Brokers that do not have a topic yet would respond as if it had been lost again. */
  async #untilKnown(admin: Admin, names: readonly string[]): Promise<void> {
    const timeout = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(KNOWN_TIMEOUT_MS)])
    while (!timeout.aborted && (await admin.partitions(names)).size < names.length) {
      await pause(KNOWN_INTERVAL_MS, timeout)
    }
  }

  /** If Kafka is unreachable, then the state of the topics is unknown and stays unchanged. */
  #failed(error: unknown): void {
    const { prefix, onProblem } = this.#options
    if (!(error instanceof KafkaUnsuitableError)) return
    this.#missing = this.#lacking.map((name) => name.slice(prefix.length))
    const nowMs = performance.now()
    if (nowMs - this.#warnedAtMs < WARN_INTERVAL_MS) return
    this.#warnedAtMs = nowMs
    const remediation = error.problems.map((problem) => problem.remediation).join('; ')
    onProblem('Kafka topics are missing and could not be created', {
      topics: this.#lacking,
      error: messageOf(error),
      remediation,
    })
  }
}
