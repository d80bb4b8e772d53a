import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { sluice, urlOf } from '../calls/targets.ts'
import { percentile } from '../figures/stats.ts'
import { Processes } from '../machine/processes.ts'
import { residentMib } from '../machine/usage.ts'
import { type FloodFigures, measureFlood } from './flood.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const SLOTS = 10
/** How long the model takes for an answer. */
const ANSWER_MS = 100
const START_TIMEOUT_MS = 2_000
/** Callers at once while the capacity is measured: more than there are slots. */
const CAPACITY_CALLERS = 3 * SLOTS
const CAPACITY_SECONDS = 4
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
  /** Resident memory when the load began, in its middle and at its end, in MiB. */
  readonly memory: readonly [begin: number, middle: number, end: number]
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
  const { pid, url } = await processes
    .node(sluice('overload', [], env))
    .then((run) => ({ pid: run.pid, url: urlOf(run) }))
  await using callers = new Callers(url)
  options.print('measuring the capacity')
  const capacity = await callers.capacity()
  options.print(`offering ${LOAD} of ${capacity.toFixed(1)} calls/s for ${options.seconds} s`)
  const offered = await callers.overload(capacity, pid, options)
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

  /** Answers a second when there is always somebody waiting. */
  async capacity(): Promise<number> {
    await this.#closedLoop(1)
    this.#answered = 0
    await this.#closedLoop(CAPACITY_SECONDS)
    return this.#answered / CAPACITY_SECONDS
  }

  async overload(capacity: number, pid: number, { seconds, signal }: OverloadOptions): Promise<OfferedFigures> {
    const memory = [residentMib(pid)]
    this.#answered = 0
    this.#isOn = true
    const newCalls = Math.round(capacity * LOAD * seconds)
    const startedAt = performance.now()
    const calls: Promise<void>[] = []
    for (let i = 0; i < newCalls; i++) {
      signal.throwIfAborted()
      if (i === Math.floor(newCalls / 2)) memory.push(residentMib(pid))
      await sleep(Math.max(0, startedAt + (i * seconds * 1_000) / newCalls - performance.now()))
      calls.push(this.#obedient(signal))
    }
    this.#isOn = false
    const loadSeconds = (performance.now() - startedAt) / 1_000
    const [goodput, [begin = 0, middle = 0]] = [this.#answered / loadSeconds, memory]
    const end = residentMib(pid)
    await Promise.all(calls)
    return {
      loadSeconds,
      capacity,
      newCalls: newCalls / loadSeconds,
      goodput,
      refusals: this.#refusalMs.length,
      refusalP50: percentile(this.#refusalMs, 0.5),
      refusalP99: percentile(this.#refusalMs, 0.99),
      cameBack: this.#cameBack,
      letIn: this.#letIn / this.#cameBack,
      memory: [begin, middle, end],
      failures: this.#failures,
    }
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
