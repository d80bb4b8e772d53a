import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe } from 'vitest'
import { hashOf } from '#shared/keys/keys.ts'
import { type Stack, startStack, until } from './stack.ts'

/** A model id with a slash: clients escape it in paths, or do not. */
export const SLASHED = 'org/echo-2'

/** A tool as JSON Schema; the echo engine calls it when a user's text names it. */
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

/** What the echo engine makes of {@link WEATHER}'s schema. */
export const WEATHER_ARGUMENTS = { city: 'city', days: 1 }

/** Text that breaks in many ways when characters are cut: two, three and four bytes, a joined emoji, a quote. */
export const UNICODE = 'naïve "日本語" 👩‍👩‍👧 ß\n\tend'

/** A script that speaks for a quarter of an hour: whoever ends it sooner, stopped it. */
export const ENDLESS = '!echo tokens=1000 delay_ms=1000'

/** Calls that {@link SdkStacks.full} holds at once: as many as one file makes there at the same time. */
const PLACES = 6

/** The services one file of SDK tests shares; no test changes their settings or leaves work behind. */
export interface SdkStacks {
  /** No limits. */
  readonly free: Stack
  /** Holds a few calls at once and refuses the next with 503: see {@link occupy}. */
  readonly full: Stack
  /** Allows one request a minute: see {@link useUp}. */
  readonly limited: Stack
}

/**
 * Runs tests against the embedded service and, where there is a Kafka, through it.
 *
 * @param address What `inject('kafka')` gave.
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

/** The sum of the samples of a metric whose labels are these. */
async function metric(stack: Stack, name: string, labels: Record<string, string> = {}): Promise<number> {
  const text = await (await stack.get('/metrics')).text()
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`)
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
  const samples = lines.filter((line) => wanted.every((label) => line.includes(label)))
  return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
}

/** Waits until so many attempts run on the worker: 0 proves that the work of a client that left was stopped. */
export async function untilRunning(stack: Stack, count: number): Promise<void> {
  await until(async () => (await metric(stack, 'sluice_pool_running')) === count)
}

/** Counts the requests that the service answers with one of these statuses from now on. */
export async function countAnswers(stack: Stack, ...statuses: number[]): Promise<() => Promise<number>> {
  const count = async () => {
    const counts = statuses.map((status) => metric(stack, 'sluice_http_requests_total', { status: String(status) }))
    return (await Promise.all(counts)).reduce((sum, each) => sum + each, 0)
  }
  const before = await count()
  return async () => (await count()) - before
}

/** Uses up the one request of {@link SdkStacks.limited}: the next is a 429. Call it just before: a minute later it is not. */
export async function useUp(stack: Stack): Promise<void> {
  await (
    await stack.post('/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] })
  ).text()
}

/** Takes every place of {@link SdkStacks.full} until it is disposed. */
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
 * Makes one call per client while the service is full, makes room after each was refused once, and gives what the calls
 * came to.
 *
 * @param call Makes the call, with the SDK's own retries.
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

/** What a promise is rejected with. @throws When it is fulfilled */
export async function failureOf(promise: PromiseLike<unknown>): Promise<Record<string, unknown>> {
  const nothing = {}
  const failure = await Promise.resolve(promise).then(
    () => nothing,
    (error: unknown) => error,
  )
  if (failure === nothing) throw new Error('The call succeeded, and was to fail.')
  return failure as Record<string, unknown>
}

/**
 * A client of the OpenAI SDK whose key is of another project than the test key.
 *
 * @param endpoints What its key may call; default: all.
 */
export async function openStranger(stack: Stack, endpoints?: readonly string[]): Promise<OpenAI> {
  const secret = 'sk-stranger-0123456789'
  const key = { id: 'stranger', hash: hashOf(secret), hint: 'sk-...', created_at: 1_790_000_000, revoked: false }
  writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [{ ...key, endpoints }] }))
  const headers = { authorization: `Bearer ${secret}` }
  await until(async () => (await stack.get('/v1/models', { headers })).status === 200)
  return new OpenAI({ apiKey: secret, baseURL: `${stack.url}/v1`, maxRetries: 0 })
}
