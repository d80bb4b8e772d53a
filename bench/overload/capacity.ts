import { setTimeout as sleep } from 'node:timers/promises'
import { postChat } from '../load/chat.ts'
import type { Address } from '../load/connection.ts'
import { startSluice } from '../machine/sluice.ts'
import { percentile } from '../results/samples.ts'
import { renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run } from '../section.ts'

const SLOTS = 10
const ANSWER_MS = 100
const START_TIMEOUT_MS = 2_000
/** Number of callers that measure the capacity. There are more callers than slots, so that each free slot gets the next call at once. */
const CAPACITY_CALLERS = 3 * SLOTS
const WARM_UP_SECONDS = 3
/** Rate of the offered calls, as a multiple of the capacity. */
const LOAD = 1.2

export async function measureCapacity(run: Run): Promise<string[]> {
  await using processes = run.processes()
  const env = { INFERENCE_SLOTS: String(SLOTS), START_TIMEOUT_MS: String(START_TIMEOUT_MS) }
  const models = ['{ id: echo-1, engine: { type: echo } }']
  const callers = new OpenCallers(await startSluice(processes, { name: 'overload', models, env }))
  const capacity = await callers.measureCapacity(run.seconds(3, 8))
  const seconds = run.seconds(8, 30)
  run.print(`offering ${show(LOAD * 100, 0)} % of ${show(capacity, 1)} calls/s for ${seconds} s`)
  const goodput = await callers.overload(capacity * LOAD, seconds, run.signal)
  const { refusalMs, retried, admitted, failures } = callers
  const p99 = percentile(refusalMs, 0.99)
  return [
    renderGoals([
      {
        name: 'goodput at 120 %, of the capacity',
        measured: (goodput / capacity) * 100,
        unit: '%',
        min: 90,
        decimals: 1,
      },
      { name: 'latency of a refusal, p99', measured: p99, unit: 'ms', max: 50, decimals: 1 },
      { name: 'calls that failed', measured: failures, unit: '', max: 0, decimals: 0 },
    ]),
    renderTable(
      ['capacity/s', 'offered/s', 'answers/s', 'refusals', 'refusal p50 ms', 'p99 ms', 'first retries', 'admitted'],
      [
        [
          ...[show(capacity, 1), show(capacity * LOAD, 1), show(goodput, 1), String(refusalMs.length)],
          ...[show(percentile(refusalMs, 0.5), 1), show(p99, 1)],
          ...[String(retried), `${show((admitted / retried) * 100, 1)} %`],
        ],
      ],
    ),
  ]
}

class OpenCallers {
  readonly refusalMs: number[] = []
  failures = 0
  /**
   * `retried`: number of calls that were retried at least once during the load. `admitted`: number of those whose first retry was admitted.
   */
  retried = 0
  admitted = 0
  readonly #address: Address
  #prompts = 0
  #answers = 0
  #isOn = false

  constructor(address: Address) {
    this.#address = address
  }

  async measureCapacity(seconds: number): Promise<number> {
    const until = performance.now() + (WARM_UP_SECONDS + seconds) * 1_000
    const loop = async () => {
      while (performance.now() < until) await this.#call(this.#prompts++)
    }
    const calling = Promise.all(Array.from({ length: CAPACITY_CALLERS }, loop))
    await sleep(WARM_UP_SECONDS * 1_000)
    const [answers, startedAt] = [this.#answers, performance.now()]
    await sleep(seconds * 1_000)
    const capacity = ((this.#answers - answers) * 1_000) / (performance.now() - startedAt)
    await calling
    return capacity
  }

  async overload(perSecond: number, seconds: number, signal: AbortSignal): Promise<number> {
    this.#answers = 0
    this.#isOn = true
    const startedAt = performance.now()
    const calls: Promise<void>[] = []
    for (let i = 0; i < perSecond * seconds; i++) {
      signal.throwIfAborted()
      await sleep(Math.max(0, startedAt + (i * 1_000) / perSecond - performance.now()))
      calls.push(this.#callWithRetries(signal))
    }
    this.#isOn = false
    const goodput = (this.#answers * 1_000) / (performance.now() - startedAt)
    await Promise.all(calls)
    return goodput
  }

  async #callWithRetries(signal: AbortSignal): Promise<void> {
    const prompt = this.#prompts++
    for (let tries = 0; ; tries++) {
      const isCounted = tries === 1
      const retryAfter = await this.#call(prompt)
      if (isCounted) this.retried++
      if (isCounted && retryAfter === undefined) this.admitted++
      if (retryAfter === undefined) return
      await sleep(retryAfter * 1_000, undefined, { signal }).catch(() => undefined)
      if (!this.#isOn || signal.aborted) return
    }
  }

  /** @returns Seconds until the call may be retried. Undefined after an answer or a failure */
  async #call(prompt: number): Promise<number | undefined> {
    const startedAt = performance.now()
    const content = `!echo first_ms=${ANSWER_MS} tokens=1\nquestion ${prompt}`
    const reply = await postChat(this.#address, 'echo-1', content).catch(() => undefined)
    if (reply?.status === 200) this.#answers++
    else if (reply?.status === 503) {
      this.refusalMs.push(performance.now() - startedAt)
      return reply.retryAfter
    } else this.failures++
    return undefined
  }
}
