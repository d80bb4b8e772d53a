import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe } from 'vitest'
import { hashOf } from '#shared/keys/keys.ts'
import { type Stack, startStack, until } from './stack.ts'

/** A model id that contains a slash. Some clients write the slash as %2F in URL paths, so the service must accept both forms. */
export const SLASHED = 'org/echo-2'

/** A tool definition. If a prompt contains the name of a tool, then the echo engine answers with a call of that tool. */
export const WEATHER = {
  name: 'get_weather',
  description: 'The weather of a city',
  schema: {
    type: 'object' as const,
    properties: { city: { type: 'string' }, days: { type: 'integer', minimum: 1 } },
    required: ['city', 'days'],
    additionalProperties: false,
  },
}

/** Arguments that the echo engine puts into a call of {@link WEATHER}. The engine generates them from the schema. */
export const WEATHER_ARGUMENTS = { city: 'city', days: 1 }

/**
 * Text that detects decoding errors at the borders of stream chunks. The text has characters of two to four bytes, an emoji of several code
 * points, quotes and control characters.
 */
export const UNICODE = 'naïve "日本語" 👩‍👩‍👧 ß\n\tend'

/** A prompt that makes the echo engine stream one token per second for a quarter of an hour. A call that ends earlier was stopped. */
export const ENDLESS = '!echo tokens=1000 delay_ms=1000'

/** Maximum concurrent calls of the service {@link SdkStacks.full}. */
const PLACES = 6

/** The services that all SDK tests of one file share. A test must not change their settings or leave calls running. */
export interface SdkStacks {
  /** A service without limits. */
  readonly free: Stack
  /** A service that accepts {@link PLACES} concurrent calls and refuses the next with 503: see {@link occupy}. */
  readonly full: Stack
  /** A service that allows each key one request per minute: see {@link useUp}. */
  readonly limited: Stack
}

/**
 * Runs the tests twice: with the embedded broker and, if a Kafka is available, over Kafka.
 *
 * @param address The value of `inject('kafka')`: address of the Kafka, or null.
 */
export function describeBothModes(title: string, address: string | null, tests: (stacks: SdkStacks) => void): void {
  for (const mode of ['embedded', 'Kafka']) {
    const kafka = mode === 'Kafka' ? (address ?? undefined) : undefined
    describe.skipIf(mode === 'Kafka' && !kafka)(`${title}, ${mode}`, () => {
      const stacks = {} as { -readonly [name in keyof SdkStacks]: Stack }
      beforeAll(async () => {
        stacks.free = await startEchoes(kafka, {})
        stacks.full = await startEchoes(kafka, { JOBS_MAX: String(PLACES) })
        stacks.limited = await startEchoes(kafka, { RATE_LIMIT_REQUESTS: '1' })
      })
      afterAll(async () => {
        await Promise.all(Object.values(stacks).map((stack) => stack[Symbol.asyncDispose]()))
      })
      tests(stacks)
    })
  }
}

function startEchoes(kafka: string | undefined, settings: Record<string, string>): Promise<Stack> {
  const models = ['echo-1', SLASHED].map((id) => ({
    id,
    engine: { type: 'echo' },
    capabilities: { images: true, audio: true, files: true, reasoning: true },
    limits: { context_tokens: 1_000_000, max_output_tokens: 100_000, default_output_tokens: 100_000 },
  }))
  return startStack({ kafka, models, settings })
}

/** The sum of the samples of a metric with these labels. */
async function metric(stack: Stack, name: string, labels: Record<string, string> = {}): Promise<number> {
  const text = await (await stack.get('/metrics')).text()
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`)
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
  const samples = lines.filter((line) => wanted.every((label) => line.includes(label)))
  return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
}

/** Waits until `count` attempts are running on the worker; 0 shows that the work of a disconnected client was stopped. */
export async function untilRunning(stack: Stack, count: number): Promise<void> {
  await until(async () => (await metric(stack, 'sluice_pool_running')) === count)
}

/** Starts to count the HTTP responses with one of these statuses. The returned function reads the count since this call. */
export async function countAnswers(stack: Stack, ...statuses: number[]): Promise<() => Promise<number>> {
  const count = async () => {
    const counts = statuses.map((status) => metric(stack, 'sluice_http_requests_total', { status: String(status) }))
    return (await Promise.all(counts)).reduce((sum, each) => sum + each, 0)
  }
  const before = await count()
  return async () => (await count()) - before
}

/** Sends the one request that {@link SdkStacks.limited} allows per minute, so that the next request gets 429. */
export async function useUp(stack: Stack): Promise<void> {
  await (
    await stack.post('/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] })
  ).text()
}

/** Fills all slots of {@link SdkStacks.full} with endless calls, which are cancelled at disposal. */
export async function occupy(stack: Stack): Promise<AsyncDisposable> {
  const leave = new AbortController()
  const body = { model: 'echo-1', messages: [{ role: 'user', content: ENDLESS }] }
  const init = { signal: leave.signal }
  const calls = Array.from({ length: PLACES }, () => stack.post('/v1/chat/completions', body, init).catch(() => {}))
  await untilRunning(stack, PLACES)
  return {
    async [Symbol.asyncDispose]() {
      leave.abort()
      await Promise.all(calls)
      await untilRunning(stack, 0)
    },
  }
}

/**
 * Tests that an SDK retries a refused call. Each client makes one call while the service is full. After each call was refused once, the slots are
 * freed. Returns the results of the calls.
 *
 * @param call Makes the call with a client whose SDK retries refused calls.
 */
export async function callWhileFull<Client, T>(
  stack: Stack,
  clients: readonly Client[],
  call: (client: Client) => PromiseLike<T>,
): Promise<T[]> {
  const refused = await countAnswers(stack, 503, 529)
  const occupants = await occupy(stack)
  const answers = Promise.all(clients.map(call))
  answers.catch(() => {})
  await until(async () => (await refused()) === clients.length).finally(() => occupants[Symbol.asyncDispose]())
  return await answers
}

/**
 * Returns the error with which a promise rejects.
 *
 * @throws Error if the promise is fulfilled
 */
export async function failureOf(promise: PromiseLike<unknown>): Promise<Record<string, unknown>> {
  const nothing = {}
  const failure = await Promise.resolve(promise).then(
    () => nothing,
    (error: unknown) => error,
  )
  if (failure === nothing) throw new Error('The call was expected to fail, but succeeded.')
  return failure as Record<string, unknown>
}

/**
 * Adds an API key of another project and returns an OpenAI SDK client with this key.
 *
 * @param endpoints Endpoints that the key may call; default: all.
 */
export async function openStranger(stack: Stack, endpoints?: readonly string[]): Promise<OpenAI> {
  const secret = 'sk-stranger-0123456789'
  const key = { id: 'stranger', hash: hashOf(secret), hint: 'sk-...', created_at: 1_790_000_000, revoked: false }
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [{ ...key, endpoints }] }))
  const headers = { authorization: `Bearer ${secret}` }
  await until(async () => (await stack.get('/v1/models', { headers })).status === 200)
  return new OpenAI({ apiKey: secret, baseURL: `${stack.url}/v1`, maxRetries: 0 })
}
