import { describe, expect, inject, it } from 'vitest'
import { openFleet } from './support/processes/fleet.ts'
import { startLocalKafka, whyNoLocalKafka } from './support/processes/kafka.ts'
import { until } from './support/stack.ts'

// A broker that tests may stop must be their own; where Kafka comes from elsewhere there may be none.
const missing = inject('kafka') === null ? 'no Kafka' : await whyNoLocalKafka()
if (missing) process.stderr.write(`Outage tests are skipped: ${missing}\n`)

describe.skipIf(missing)('while Kafka is away', () => {
  it('refuses new calls at once, finishes those under way when it is back, and works on', {
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
    await until(async () => (await fetch(`${ingress.url}/readyz`)).status === 503)
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
    // Calls go out again before the last of its consumers has found its partitions.
    await until(async () => (await fetch(`${ingress.url}/readyz`)).status === 200, { withinMs: 30_000 })
  })
})
