import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { sluice, urlOf } from '../calls/targets.ts'
import { percentile } from '../figures/stats.ts'
import { type Collected, Inspected } from '../machine/heap.ts'
import { Processes } from '../machine/processes.ts'
import { type FloodFigures, measureFlood } from './flood.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const SLOTS = 10
/** How long the model takes for an answer. */
const ANSWER_MS = 100
const START_TIMEOUT_MS = 2_000
/** Callers at once while the capacity is measured: more than there are slots. */
const CAPACITY_CALLERS = 3 * SLOTS
const WARM_UP_SECONDS = 3
const CAPACITY_SECONDS = 8
/** What is asked for, of the capacity. */
const LOAD = 1.2
const CALL_MS = 60_000

/** What a run found out about overload. */
export interface OverloadResults {
  readonly offered: OfferedFigures
  readonly floods: readonly FloodFigures[]
}

/** One process that is offered more calls than it can answer. Rates are a second. */
export interface OfferedFigures {
  readonly loadSeconds: number
  readonly capacity: number
  readonly newCalls: number
  /** Answers while the load was on. */
  readonly goodput: number
  readonly refusals: number
  /** Milliseconds from the call to its refusal. */
  readonly refusalP50: number
  readonly refusalP99: number
  /** Callers who came back while the load was on, as they were told to, for the first time. */
  readonly cameBack: number
  /** The part of these that were let in. */
  readonly letIn: number
  /** Answers that came while the load was on, as a part of the capacity. */
  readonly ofCapacity: number
  /** What the process held after a third of the load, after two and at its end. */
  readonly memory: readonly Collected[]
  readonly failures: number
}

/** How much is measured. */
export interface OverloadOptions {
  /** How long the load is on. */
  readonly seconds: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** Offers one process a fifth more calls than it can answer, to callers who obey `Retry-After`; then floods ingresses. */
export async function measureOverload(options: OverloadOptions, dir: string): Promise<OverloadResults> {
  await using processes = new Processes(dir, undefined)
  const modelsFile = join(dir, 'overload-models.yaml')
  writeFileSync(modelsFile, 'models:\n  - id: echo-1\n    engine: { type: echo }\n')
  const env = {
    PORT: '0',
    DATA_DIR: join(dir, 'overload'),
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: KEY,
    INFERENCE_SLOTS: String(SLOTS),
    START_TIMEOUT_MS: String(START_TIMEOUT_MS),
  }
  const inspected = await Inspected.choose()
  const run = await processes.node({ ...sluice('overload', [], env), nodeFlags: inspected.nodeFlags })
  await using callers = new Callers(urlOf(run))
  options.print('measuring the capacity')
  const capacity = await callers.capacity()
  options.print(`offering ${LOAD} of ${capacity.toFixed(1)} calls/s for ${options.seconds} s`)
  const offered = await callers.overload(capacity, () => inspected.collect(run.pid), options)
  const floods: FloodFigures[] = []
  for (const ingresses of [1, 3]) {
    options.print(`flooding ${ingresses === 1 ? 'an ingress' : `${ingresses} ingresses`}`)
    floods.push(await measureFlood(ingresses, options.signal))
  }
  return { offered, floods }
}

/** Callers on connections of their own, each with a question of its own. */
class Callers implements AsyncDisposable {
  readonly #url: URL
  readonly #agent = new Agent({ connections: null, pipelining: 1 })
  readonly #refusalMs: number[] = []
  #asked = 0
  #answered = 0
  #failures = 0
  #cameBack = 0
  #letIn = 0
  #isOn = false

  constructor(url: URL) {
    this.#url = url
  }

  /** Answers a second when there is always somebody waiting: of those alone that came within the time. */
  async capacity(): Promise<number> {
    const asking = this.#closedLoop(WARM_UP_SECONDS + CAPACITY_SECONDS)
    await sleep(WARM_UP_SECONDS * 1_000)
    const [answered, startedAt] = [this.#answered, performance.now()]
    await sleep(CAPACITY_SECONDS * 1_000)
    const capacity = (this.#answered - answered) / ((performance.now() - startedAt) / 1_000)
    await asking
    return capacity
  }

  async overload(capacity: number, collect: () => Promise<Collected>, options: OverloadOptions) {
    const { seconds, signal } = options
    this.#answered = 0
    this.#isOn = true
    const newCalls = Math.round(capacity * LOAD * seconds)
    const startedAt = performance.now()
    const calls: Promise<void>[] = []
    const memory: Promise<Collected>[] = []
    for (let i = 0; i < newCalls; i++) {
      signal.throwIfAborted()
      if (i === Math.floor(newCalls / 3) || i === Math.floor((2 * newCalls) / 3)) memory.push(collect())
      await sleep(Math.max(0, startedAt + (i * seconds * 1_000) / newCalls - performance.now()))
      calls.push(this.#obedient(signal))
    }
    this.#isOn = false
    const loadSeconds = (performance.now() - startedAt) / 1_000
    const goodput = this.#answered / loadSeconds
    memory.push(collect())
    const collected = await Promise.all(memory)
    await Promise.all(calls)
    const figures: OfferedFigures = {
      loadSeconds,
      capacity,
      newCalls: newCalls / loadSeconds,
      goodput,
      ofCapacity: goodput / capacity,
      refusals: this.#refusalMs.length,
      refusalP50: percentile(this.#refusalMs, 0.5),
      refusalP99: percentile(this.#refusalMs, 0.99),
      cameBack: this.#cameBack,
      letIn: this.#letIn / this.#cameBack,
      memory: collected,
      failures: this.#failures,
    }
    return figures
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.destroy()
  }

  async #closedLoop(seconds: number): Promise<void> {
    const until = performance.now() + seconds * 1_000
    const loop = async () => {
      while (performance.now() < until) await this.#call(this.#asked++)
    }
    await Promise.all(Array.from({ length: CAPACITY_CALLERS }, loop))
  }

  /** Asks, and comes back when it is told to for as long as the load is on. */
  async #obedient(signal: AbortSignal): Promise<void> {
    const nth = this.#asked++
    for (let tries = 0; !signal.aborted; tries++) {
      const counts = tries === 1 && this.#isOn
      const retryAfter = await this.#call(nth)
      if (counts) this.#cameBack++
      if (counts && retryAfter === undefined) this.#letIn++
      if (retryAfter === undefined || !this.#isOn) return
      await sleep(retryAfter * 1_000, undefined, { signal }).catch(() => undefined)
      if (!this.#isOn) return
    }
  }

  /** @returns Seconds after which to come back; undefined after an answer */
  async #call(nth: number): Promise<number | undefined> {
    const startedAt = performance.now()
    try {
      const content = `!echo first_ms=${ANSWER_MS} tokens=1\nquestion ${nth}`
      const { statusCode, headers, body } = await request(new URL('/v1/chat/completions', this.#url), {
        method: 'POST',
        dispatcher: this.#agent,
        headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content }] }),
        headersTimeout: CALL_MS,
      })
      await body.dump()
      if (statusCode === 200) this.#answered++
      if (statusCode === 503) {
        this.#refusalMs.push(performance.now() - startedAt)
        return Number(headers['retry-after'])
      }
      if (statusCode !== 200) this.#failures++
    } catch {
      this.#failures++
    }
    return undefined
  }
}
