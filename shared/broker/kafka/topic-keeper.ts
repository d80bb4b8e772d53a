/**
 * Keeps the topics of a running process there. Kafka deletes a topic while clients use it (an operator, a clean-up job, a cluster
 * that came back without its data), and then answers every request for it with an error that clients call transient. So an
 * absent topic would look like a broker that is slow, without end.
 *
 * States: `present → lacking → present`, or `lacking → missing` when the boot check cannot make the topic, for want of a right
 * or of brokers. A missing topic is tried again without end, at most {@link RETRY} apart, because its remedy is outside the process.
 */
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { type KafkaOptions, partitionsNeeded } from './options.ts'
import { pause } from './supervision.ts'
import { type BootProblem, type KafkaAdmin, KafkaUnfitError, messageOf } from './topics.ts'

const RETRY: Backoff = { baseMs: 500, maxMs: 10_000 }
const KNOWN_TIMEOUT_MS = 5_000
const KNOWN_INTERVAL_MS = 50
/** Time between two warnings about topics that stay missing. */
const WARN_INTERVAL_MS = 60_000

/** Opens a view of the cluster that remembers nothing of the time before, calls `use` with it, and closes it. */
type Look<Admin> = (use: (admin: Admin) => Promise<void>) => Promise<void>

/** The topics of one process. The caller closes it. */
export class TopicKeeper<Admin extends KafkaAdmin> {
  readonly #look: Look<Admin>
  readonly #check: (admin: Admin) => Promise<BootProblem[]>
  readonly #options: KafkaOptions
  readonly #closing = new AbortController()
  #keeping: Promise<void> | undefined
  #lacking: readonly string[] = []
  #missing: readonly string[] = []
  #warnedAtMs = Number.NEGATIVE_INFINITY

  /** @param check The boot check, which makes what is missing. */
  constructor(look: Look<Admin>, check: (admin: Admin) => Promise<BootProblem[]>, options: KafkaOptions) {
    this.#look = look
    this.#check = check
    this.#options = options
  }

  /** Queues and channels whose topics are missing and could not be made. */
  get missing(): readonly string[] {
    return this.#missing
  }

  /** Topics may be missing: looks, and makes those that are. Returns at once; a look under way goes on. */
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
        await this.#look((admin) => this.#make(admin))
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
    if (problems.length > 0) throw new KafkaUnfitError(problems)
    await this.#untilKnown(admin, names)
    onProblem('Kafka topics were missing, and were made again', { topics: this.#lacking })
  }

  /** The brokers learn of a new topic one after the other; until then each of their answers would look like another loss. */
  async #untilKnown(admin: Admin, names: readonly string[]): Promise<void> {
    const timeout = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(KNOWN_TIMEOUT_MS)])
    while (!timeout.aborted && (await admin.partitions(names)).size < names.length) {
      await pause(KNOWN_INTERVAL_MS, timeout)
    }
  }

  /** Kafka that does not answer says nothing about its topics. */
  #failed(error: unknown): void {
    const { prefix, onProblem } = this.#options
    if (!(error instanceof KafkaUnfitError)) return
    this.#missing = this.#lacking.map((name) => name.slice(prefix.length))
    const nowMs = performance.now()
    if (nowMs - this.#warnedAtMs < WARN_INTERVAL_MS) return
    this.#warnedAtMs = nowMs
    const fix = error.problems.map((problem) => problem.fix).join('; ')
    onProblem('Kafka topics are missing and cannot be made', { topics: this.#lacking, error: messageOf(error), fix })
  }
}
