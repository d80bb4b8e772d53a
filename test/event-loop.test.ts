/*
 * Tests that no request blocks the event loop for long. The limit of the product is 50 ms per block, so that other requests are answered in the
 * meantime.
 *
 * A block is measured as CPU time of the service's main thread, so that other work on the machine does not count. The limit of the test is 100
 * ms, and larger on slow machines ({@link slowness}).
 */
import { existsSync, readFileSync } from 'node:fs'
import { availableParallelism, homedir, loadavg } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { hostileAnswers, startHostileUpstream } from './support/hostile-answers.ts'
import { HOSTILE_INPUTS, type HostileInput, modelInputs, send } from './support/hostile-inputs.ts'
import { HOSTILE_STORED } from './support/hostile-stored.ts'
import { cpuMs } from './support/loop-hold.ts'
import { type SingleProcess, startSingleProcess } from './support/processes/single-process.ts'
import { ECHO_MODEL } from './support/stack.ts'

/** Maximum CPU time in ms for which a request may block the event loop in this test. */
const HOLD_MS_MAX = 100
/**
 * CPU time in ms to join the pieces of one large string ({@link LARGE_PIECES}). The reference machine needs 20 to 25 ms. A slower machine gets
 * proportionally larger limits.
 */
const JOIN_MS = 25
/** Number of pieces of 128 KiB in a body of 28 MB. Joining them is slow, mostly because the kernel must map memory. */
const LARGE_PIECES = 224
/** Maximum response time of `/healthz` on an idle machine, while the service handles a large request. */
const HEALTH_MS_MAX = 250

const weights = join(
  process.env.XDG_CACHE_HOME || join(homedir(), '.cache'),
  'sluice/models/smollm2-135m-instruct.gguf',
)
const hasWeights = existsSync(weights)
const MODELS = [
  ECHO_MODEL,
  {
    id: 'embed-1',
    pool: 'embeddings',
    engine: { type: 'openai', base_url: 'http://127.0.0.1:9/v1' },
    limits: { context_tokens: 8_192 },
  },
  { id: 'speech-1', pool: 'transcription', engine: { type: 'openai', base_url: 'http://127.0.0.1:9/v1' } },
  ...(hasWeights ? [{ id: 'llama-1', engine: { type: 'llama', file: weights, context_tokens: 2_048 } }] : []),
]

let service: SingleProcess
let hostile: Awaited<ReturnType<typeof startHostileUpstream>>
beforeAll(async () => {
  ownDelay.enable()
  hostile = await startHostileUpstream()
  service = await startSingleProcess({
    models: [...MODELS, ...hostile.models],
    settings: { REQUEST_TIMEOUT_MS: '300000', START_TIMEOUT_MS: '30000' },
  })
  const chat = { model: hasWeights ? 'llama-1' : 'echo-1', max_tokens: 1, messages: [{ role: 'user', content: 'hi' }] }
  expect(await send(service.url, 'POST /v1/chat/completions', JSON.stringify(chat))).toBe(200)
  // The first request makes the service load the model and its vocabulary, so that the load is not measured.
  const tokens = { model: 'embed-1', input: [1, 2, 3] }
  expect(await send(service.url, 'POST /v1/embeddings', JSON.stringify(tokens))).toBe(502)
})
afterAll(async () => {
  ownDelay.disable()
  await service[Symbol.asyncDispose]()
  await hostile.upstream[Symbol.asyncDispose]()
})

/**
 * Number of runnable processes per processor, including this test and the service. Time limits are multiplied by this number, so that a busy
 * machine does not make the test fail.
 */
function crowding(): number {
  // The load average is up to a minute old, so the current number of running processes is read, too. The format of the file is `0.5 0.4 0.3
  // RUNNING/ALL PID`.
  const now = process.platform === 'linux' ? readFileSync('/proc/loadavg', 'utf8') : ''
  const running = Number(/(\d+)\/\d+ \d+\n$/.exec(now)?.[1] ?? 0)
  return Math.max(1, Math.max(loadavg()[0] ?? 0, running) / availableParallelism())
}

const ownDelay = monitorEventLoopDelay({ resolution: 1 })

/** Measures the response time of `/healthz`. The longest time for which the test process itself was blocked is subtracted. */
async function healthMs(): Promise<number> {
  ownDelay.reset()
  const sentAt = performance.now()
  expect(await send(service.url, 'GET /healthz')).toBe(200)
  return Math.max(0, performance.now() - sentAt - ownDelay.max / 1e6)
}

/**
 * Polls `/healthz` while `work` runs.
 *
 * @returns The longest response time, and the load of the machine ({@link crowding})
 */
async function longestHealthMs(work: Promise<unknown>): Promise<{ waitedMs: number; crowd: number }> {
  let isDone = false
  const done = work.finally(() => {
    isDone = true
  })
  let [waitedMs, crowd] = [0, 1]
  while (!isDone) {
    waitedMs = Math.max(waitedMs, await healthMs())
    crowd = Math.max(crowd, crowding())
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  await done
  return { waitedMs, crowd }
}

/**
 * Factor by which this machine is slower than the reference machine, measured by the time to build one string of 28 MB. On virtual machines that
 * map memory page by page, the factor was five.
 */
function slowness(): number {
  const piece = 'hello world '.repeat(Math.floor((128 * 1024) / 12))
  let text = ''
  for (let pieces = 0; pieces < LARGE_PIECES; pieces++) text += piece
  const before = cpuMs()
  expect(text.toWellFormed().length).toBe(text.length)
  return Math.max(1, (cpuMs() - before) / JOIN_MS)
}

async function checkRow({ name, make, send, holds, isWarmed }: HostileInput): Promise<void> {
  const made = make()
  if (isWarmed) await send(service.url, made)
  await service.longestHoldMs()
  let status: number | undefined
  const work = send(service.url, made).then((answered) => {
    status = answered
  })
  const { waitedMs, crowd } = await longestHealthMs(work)
  const heldMs = await service.longestHoldMs()
  if (process.env.TEST_LOG)
    process.stdout.write(`${name}: blocked ${heldMs} ms, /healthz took ${waitedMs} ms, status ${status}\n`)
  expect(service.isAlive).toBe(true)
  expect(status).not.toBe(0)
  const mostMs = holds?.ms ?? HOLD_MS_MAX
  expect(heldMs).toBeLessThan(heldMs < mostMs ? mostMs : mostMs * slowness())
  expect(waitedMs).toBeLessThan((HEALTH_MS_MAX + (holds?.ms ?? 0)) * crowd)
}

describe('a hostile request', () => {
  it.each([...HOSTILE_INPUTS, ...HOSTILE_STORED])('blocks the event loop for at most 50 ms: $name', checkRow)
})

describe('a hostile upstream response', () => {
  it.each(hostileAnswers((script) => hostile.upstream.script(script)))(
    'blocks the event loop for at most 50 ms: $name',
    checkRow,
  )
})

describe.skipIf(!hasWeights)('a hostile call of an in-process model', () => {
  it.each(modelInputs('llama-1'))('blocks the event loop for at most 50 ms: $name', checkRow)
})
