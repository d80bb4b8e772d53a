/** Tests that the adaptive limit avoids long waits inside an upstream, with servers that queue calls or run them in batches. */
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import { ask, collect } from '../../support/engine-calls.ts'

const MAX = 32
const STEP_MS = 100

/**
 * Starts a server that streams chat completions.
 *
 * @param run Returns two functions: `first` waits until the first token can be sent, `rest` until the response can end
 */
async function startServer(run: (inFlight: () => number) => { first(): Promise<void>; rest(): Promise<void> }) {
  let inFlight = 0
  const { first, rest } = run(() => inFlight)
  const say = (response: ServerResponse, delta: object, finish_reason: string | null) =>
    response.write(`data: ${JSON.stringify({ id: 'c', choices: [{ index: 0, delta, finish_reason }] })}\n\n`)
  const server = createServer(async (request, response) => {
    request.resume()
    inFlight++
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    await first()
    say(response, { role: 'assistant', content: 'a' }, null)
    await rest()
    say(response, {}, 'stop')
    response.end('data: [DONE]\n\n')
    inFlight--
  })
  server.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    inFlight: () => inFlight,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/**
 * Makes calls with concurrent callers.
 *
 * @returns For each call of the second half: number of calls inside the server when this call started
 */
async function load(server: Awaited<ReturnType<typeof startServer>>, callers: number, calls: number) {
  const model = { id: 'm1', engine: { type: 'openai', base_url: server.url, concurrency: MAX } }
  const engine = openOpenAiEngine(ModelConfig.parse(model), {})
  const seen: number[] = []
  const call = ask({ stream: true })
  await Promise.all(Array.from({ length: 8 }, () => collect(engine, call)))
  let left = calls
  const caller = async () => {
    while (left-- > 0) {
      await collect(engine, call)
      if (left < calls / 2) seen.push(server.inFlight())
    }
  }
  await Promise.all(Array.from({ length: callers }, caller))
  const { places = 0 } = engine
  await engine.close()
  return { seen, places }
}

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length

test('an upstream server that queues calls beyond 4 slots receives fewer concurrent calls than the maximum', async () => {
  const slots = 4
  await using server = await startServer(() => {
    const waiting: (() => void)[] = []
    let free = slots
    return {
      async first() {
        if (free === 0) await new Promise<void>((resolve) => waiting.push(resolve))
        else free--
        await delay(STEP_MS)
      },
      async rest() {
        const next = waiting.shift()
        if (next) next()
        else free++
      },
    }
  })
  const { seen } = await load(server, MAX, 240)
  // The adaptive limit allows a first byte to take up to three times the minimum time, so some calls wait inside the server. Without the
  // limit, nearly all calls would be inside the server.
  expect(mean(seen)).toBeLessThan(MAX / 2 + slots)
  expect(mean(seen)).toBeGreaterThan(slots - 1)
})

test('an upstream server that batches calls receives the maximum of concurrent calls, although calls become slower', async () => {
  await using server = await startServer((inFlight) => ({
    first: () => delay((STEP_MS / 2) * (1 + inFlight() / (MAX / 2))),
    rest: () => delay(STEP_MS / 10),
  }))
  const { places } = await load(server, MAX, 4 * MAX)
  expect(places).toBe(MAX)
})
