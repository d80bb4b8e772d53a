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

/**
 * Holds of the event loop. No request may hold the loop for more than 50 ms, and other requests are answered meanwhile.
 *
 * A hold is measured as CPU time of the main thread of the service, so that other work on the machine does not count. The bound here is 100
 * ms, and larger on slow machines ({@link slowness}).
 */
const HOLD_MS_MAX = 100
/** CPU time that one string of {@link LARGE_PIECES} takes on the reference machine: 20 to 25 ms. */
const JOIN_MS = 25
/** Number of pieces of 128 KiB in a body of 28 MB. Joining the pieces takes long, mostly because the kernel maps memory. */
const LARGE_PIECES = 224
/** Maximum wait of a request for `/healthz` on an idle machine, while the service handles a large request. */
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
  // Loads the model and the vocabulary before the measurement.
  const tokens = { model: 'embed-1', input: [1, 2, 3] }
  expect(await send(service.url, 'POST /v1/embeddings', JSON.stringify(tokens))).toBe(502)
})
afterAll(async () => {
  ownDelay.disable()
  await service[Symbol.asyncDispose]()
  await hostile.upstream[Symbol.asyncDispose]()
})

/** Number of runnable processes per processor. Bounds are scaled by this number. This test and the service are two of the processes. */
function crowding(): number {
  // The load average lags by a minute, so the number of running processes counts too: `0.5 0.4 0.3 RUNNING/ALL PID`.
  const now = process.platform === 'linux' ? readFileSync('/proc/loadavg', 'utf8') : ''
  const running = Number(/(\d+)\/\d+ \d+\n$/.exec(now)?.[1] ?? 0)
  return Math.max(1, Math.max(loadavg()[0] ?? 0, running) / availableParallelism())
}

const ownDelay = monitorEventLoopDelay({ resolution: 1 })

/** Wait for the response of `/healthz`. The time for which this process itself was blocked while it made the request is subtracted. */
async function healthMs(): Promise<number> {
  ownDelay.reset()
  const sentAt = performance.now()
  expect(await send(service.url, 'GET /healthz')).toBe(200)
  return Math.max(0, performance.now() - sentAt - ownDelay.max / 1e6)
}

/** Polls `/healthz` while `work` runs. @returns the longest wait, and the crowding of the machine */
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
 * Speed of this machine relative to the reference: the time to build one string of 28 MB. Virtual machines whose memory is mapped page by page
 * took five times as long.
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
  if (process.env.TEST_LOG) process.stdout.write(`${heldMs} ms held, ${waitedMs} ms for health, ${status}: ${name}\n`)
  expect(service.isAlive).toBe(true)
  expect(status).not.toBe(0)
  const mostMs = holds?.ms ?? HOLD_MS_MAX
  expect(heldMs).toBeLessThan(heldMs < mostMs ? mostMs : mostMs * slowness())
  expect(waitedMs).toBeLessThan((HEALTH_MS_MAX + (holds?.ms ?? 0)) * crowd)
}

describe('a hostile request', () => {
  it.each([...HOSTILE_INPUTS, ...HOSTILE_STORED])('holds the event loop for at most 50 ms: $name', checkRow)
})

describe('a hostile upstream response', () => {
  it.each(hostileAnswers((script) => hostile.upstream.script(script)))(
    'holds the event loop for at most 50 ms: $name',
    checkRow,
  )
})

describe.skipIf(!hasWeights)('a hostile call of an in-process model', () => {
  it.each(modelInputs('llama-1'))('holds the event loop for at most 50 ms: $name', checkRow)
})
