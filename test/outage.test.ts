import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, inject, it } from 'vitest'
import { openFleet } from './support/processes/fleet.ts'
import { startLocalKafka, whyNoLocalKafka } from './support/processes/kafka.ts'
import { until } from './support/stack.ts'

// Each test stops a Kafka broker, so it starts its own one with deploy/kafka-local.sh instead of using the shared one.
const missing = inject('kafka') === null ? 'no Kafka' : await whyNoLocalKafka()
if (missing) process.stderr.write(`Outage tests are skipped: ${missing}\n`)

describe.skipIf(missing)('an ingress while Kafka is down', () => {
  it('refuses new calls immediately, completes running calls after Kafka restarts, and accepts calls again', {
    timeout: 180_000,
  }, async () => {
    await using kafka = await startLocalKafka()
    await using fleet = await openFleet(kafka.address)
    const ingress = await fleet.start('ingress')
    await fleet.start('inference')
    const ask = (content: string, stream: boolean) =>
      fleet.post(ingress, '/v1/chat/completions', { model: 'echo-1', messages: [{ role: 'user', content }], stream })
    await (await ask('warm', false)).text()
    const whole = ask('!echo first_ms=3000\nlate', false)
    const streamed = await ask('!echo tokens=100 delay_ms=50', true)
    await kafka.down('SIGTERM')
    const refused = await until(async () => {
      const response = await ask('nobody hears', false)
      await response.text()
      return response.status === 503 ? response : undefined
    })
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0)
    // At first the ingress stays ready, because another broker usually takes over within seconds. The ingress becomes unready only if the outage
    // lasts longer.
    expect((await fetch(`${ingress.url}/readyz`)).status).toBe(200)
    await until(async () => (await fetch(`${ingress.url}/readyz`)).status === 503, { withinMs: 40_000 })
    await kafka.resume()
    expect(await (await whole).json()).toMatchObject({ choices: [{ message: { content: 'late' } }] })
    const text = await streamed.text()
    expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
    expect(text.match(/"delta":\{"content"/g)?.length).toBeGreaterThan(0)
    const again = await until(
      async () => {
        const response = await ask('back again', false)
        return response.status === 200 ? await response.text() : undefined
      },
      { withinMs: 30_000 },
    )
    expect(again).toContain('back again')
    // The ingress is ready only when all its consumers have their partitions again. The calls above may succeed before that.
    await until(async () => (await fetch(`${ingress.url}/readyz`)).status === 200, { withinMs: 30_000 })
  })
})

/** Failover times as in Kafka's default settings. deploy/kafka-local.sh sets shorter ones for other tests. */
const FAILOVER_AS_SHIPPED = 'broker.session.timeout.ms=9000\nbroker.heartbeat.interval.ms=2000\n'

/**
 * Numbers of the nodes that are killed, one after the other. Each leads a third of the partitions. Node 1 is not killed: it is the only
 * controller of this small cluster, and failover needs a controller.
 */
const KILLED = process.env.SLUICE_TEST_LONG ? [2, 3] : [2]

describe.skipIf(missing)('a fleet after the failure of one of three Kafka brokers', () => {
  it('answers every call, stays ready, and does not report Kafka as unreachable', {
    timeout: 300_000,
  }, async () => {
    await using kafka = await startLocalKafka(3, FAILOVER_AS_SHIPPED)
    await using fleet = await openFleet(kafka.address)
    const ingress = await fleet.start('ingress')
    const worker = await fleet.start('inference')
    const statuses: number[] = []
    const readiness: number[] = []
    let isOver = false
    const repeat = async (pauseMs: number, step: () => Promise<unknown>) => {
      while (!isOver) await Promise.all([step(), delay(pauseMs)])
    }
    const call = async () => {
      const body = { model: 'echo-1', messages: [{ role: 'user', content: 'through it all' }] }
      const response = await fleet.post(ingress, '/v1/chat/completions', body)
      await response.text()
      statuses.push(response.status)
    }
    await until(async () => {
      await call()
      return statuses.at(-1) === 200
    })
    statuses.length = 0
    const callers = Array.from({ length: 4 }, () => repeat(50, call))
    const probe = repeat(200, async () => readiness.push((await fetch(`${ingress.url}/readyz`)).status))
    const untilServed = async (count: number) => {
      const before = statuses.length
      await until(() => statuses.length >= before + count, { withinMs: 60_000 })
    }
    await untilServed(50)
    for (const node of KILLED) {
      await kafka.down('SIGKILL', node)
      const goneAt = Date.now()
      await until(() => Date.now() > goneAt + 15_000, { withinMs: 20_000 })
      await untilServed(50)
      await kafka.resume(node)
      await untilServed(50)
    }
    isOver = true
    await Promise.all([...callers, probe])
    expect(statuses.filter((status) => status !== 200)).toEqual([])
    expect(readiness.filter((status) => status !== 200)).toEqual([])
    for (const { log } of [ingress, worker]) {
      expect(log.filter(({ msg }) => msg === 'no Kafka broker answers')).toEqual([])
      expect(log.filter(({ msg }) => msg === 'Kafka settings delay the failover from a dead broker')).toHaveLength(1)
    }
  })
})
