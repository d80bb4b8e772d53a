import { describe, expect, inject, it } from 'vitest'
import type { Role } from '#services/services.ts'
import { openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { freePort } from './support/processes/free-ports.ts'
import { startHaproxy, whyNoHaproxy } from './support/processes/haproxy.ts'
import { TEST_KEY, until } from './support/stack.ts'

const kafka = inject('kafka')

const PLAIN_CALLERS = 12
const STREAM_CALLERS = 6
const NOTICE = { DRAIN_NOTICE_MS: '2500' }

interface Outcome {
  readonly status: number
  readonly end: string
}

describe.skipIf(!kafka || whyNoHaproxy())('a rolling restart behind HAProxy', { timeout: 240_000 }, () => {
  it.each(['share', 'classic'])('fails no call and breaks no stream (KAFKA_CLIENT=%s)', async (client) => {
    await using fleet = await openFleet(kafka ?? '')
    const start = async (role: Role, settings: Record<string, string>) => ({
      settings,
      process: await fleet.start(role, { KAFKA_CLIENT: client, ...settings }),
    })
    const ports = [await freePort(), await freePort()]
    const running = [
      ...(await Promise.all(ports.map((port) => start('ingress', { PORT: String(port), ...NOTICE })))),
      ...(await Promise.all([start('inference', {}), start('inference', {})])),
    ]
    await using balancer = await startHaproxy(ports)
    const load = startLoad(balancer.url)
    await until(() => load.outcomes.length > 50, { withinMs: 60_000 })
    for (const { process, settings } of running) {
      process.kill('SIGTERM')
      expect(await process.exited).toBe(0)
      const next = await start(process.role as Role, settings)
      if (process.role === 'ingress') await untilServing(next.process)
    }
    const outcomes = await load.stop()
    expect(outcomes.filter(({ status, end }) => status !== 200 || !end.endsWith('[DONE]'))).toEqual([])
  })
})

/** Starts callers that repeat calls until they are stopped. Half of the callers keep their connection open between calls. */
function startLoad(url: string) {
  const outcomes: Outcome[] = []
  let isStopped = false
  const repeat = async (isStream: boolean, isKept: boolean) => {
    while (!isStopped) outcomes.push(await callOnce(url, isStream, isKept))
  }
  const callers = [
    ...Array.from({ length: PLAIN_CALLERS }, (_, index) => repeat(false, index % 2 === 0)),
    ...Array.from({ length: STREAM_CALLERS }, (_, index) => repeat(true, index % 2 === 0)),
  ]
  return {
    outcomes,
    async stop() {
      isStopped = true
      await Promise.all(callers)
      return outcomes
    },
  }
}

async function callOnce(url: string, stream: boolean, isKept: boolean): Promise<Outcome> {
  const content = stream ? '!echo tokens=20 delay_ms=40' : '!echo first_ms=60\n[DONE]'
  try {
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${TEST_KEY}`,
        'content-type': 'application/json',
        connection: isKept ? 'keep-alive' : 'close',
      },
      body: JSON.stringify({ model: 'echo-1', stream, messages: [{ role: 'user', content }] }),
    })
    const text = await response.text()
    if (stream || !response.ok) return { status: response.status, end: text.trimEnd().slice(-200) }
    return { status: response.status, end: JSON.parse(text).choices[0].message.content }
  } catch (error) {
    return { status: 0, end: String((error as Error).cause ?? error) }
  }
}

/** Waits until `/readyz` of the ingress succeeds, and then until HAProxy has had time for its next health check. */
async function untilServing(ingress: RoleProcess): Promise<void> {
  await until(async () => (await fetch(`${ingress.url}/readyz`)).ok, { withinMs: 60_000 })
  await new Promise((resolve) => setTimeout(resolve, 1_000))
}
