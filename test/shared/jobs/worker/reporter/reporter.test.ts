import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { type JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { REPLIES } from '#shared/jobs/records.ts'
import { Reporter } from '#shared/jobs/worker/reporter.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { envelopeOf, mergeSaid, silentLog, textOfEvents } from '../../../../support/jobs/jobs.ts'
import { until } from '../../../../support/stack.ts'

const KIB = 1024

interface SentRecord {
  readonly to: string
  readonly bytes: number
  readonly events: JobEvent[]
}

/** Opens a reporter on a channel that accepts a record only after `gate` resolves. The sent and the refused messages are recorded. */
function openReporter(gate: (sent: number) => Promise<void> = async () => {}) {
  const sent: SentRecord[] = []
  let underWay = 0
  let mostUnderWay = 0
  const send: Broker['send'] = async (channel, _partition, key, value) => {
    expect(channel).toBe(REPLIES)
    mostUnderWay = Math.max(mostUnderWay, ++underWay)
    try {
      await gate(sent.length)
      const { worker, events } = ReplyRecord.parse(JSON.parse(value.toString()))
      expect(worker).toBe('wrk_1')
      sent.push({ to: key, bytes: value.length, events })
    } finally {
      underWay--
    }
  }
  const reporter = new Reporter({ send } as Broker, 'wrk_1', silentLog)
  return { reporter, sent, mostUnderWay: () => mostUnderWay, events: () => sent.flatMap((record) => record.events) }
}

/** Returns a gate that blocks all records until the test opens it. */
function shutGate() {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { wait: () => promise, open: resolve }
}

describe('the reporter of a worker', () => {
  it('sends the events of an attempt in order, numbered from 1 without gaps', async () => {
    const { reporter, events } = openReporter()
    const attempt = reporter.open(envelopeOf({ attempt: 7 }), mergeSaid)
    await attempt.started()
    for (const text of ['a', 'b', 'c']) await attempt.event({ text, apart: true })
    await attempt.completed()
    expect(events().map((event) => event.seq)).toEqual(events().map((_, index) => index + 1))
    expect(events().map((event) => event.type)).toEqual(['started', 'delta', 'completed'])
    expect(new Set(events().map((event) => `${event.job_id} ${event.attempt}`))).toEqual(new Set(['job_1 7']))
    expect(textOfEvents(events())).toBe('abc')
  })

  it('combines the events of all jobs in one tick into one record', async () => {
    const { reporter, sent } = openReporter()
    const attempts = ['job_1', 'job_2', 'job_3'].map((id) => reporter.open(envelopeOf({ id }), mergeSaid))
    const started = attempts.map((attempt) => attempt.started())
    for (const attempt of attempts) for (const text of ['a', 'b']) void attempt.event({ text })
    await Promise.all(started)
    expect(sent).toHaveLength(1)
    expect(sent[0]?.events).toHaveLength(6)
  })

  it('has at most one record per ingress in flight, and merges later events into the next record', async () => {
    const gate = shutGate()
    const { reporter, sent, mostUnderWay } = openReporter(gate.wait)
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    const started = attempt.started()
    await new Promise(setImmediate)
    for (let i = 0; i < 100; i++) await attempt.event({ text: 'x' })
    const completed = attempt.completed()
    gate.open()
    await Promise.all([started, completed])
    expect(mostUnderWay()).toBe(1)
    expect(sent.map((record) => record.events.map((event) => event.type))).toEqual([
      ['started'],
      ['delta', 'completed'],
    ])
    expect(sent[1]?.events[0]).toMatchObject({ deltas: [{ text: 'x'.repeat(100) }] })
  })

  it('collects events for 6 ms after a record of eight events, and sends them at once after a smaller record', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'performance'] })
    try {
      const { reporter, sent } = openReporter()
      const attempts = Array.from({ length: 8 }, (_, nth) => reporter.open(envelopeOf({ id: `job_${nth}` }), mergeSaid))
      const sendTick = async (count: number) => {
        for (const attempt of attempts.slice(0, count)) await attempt.event({ text: 'x' })
        await new Promise(setImmediate)
        await new Promise(setImmediate)
      }
      for (const events of [7, 7, 8, 8, 8]) await sendTick(events)
      expect(sent.map(({ events }) => events.length)).toEqual([7, 7, 8])
      await vi.advanceTimersByTimeAsync(6)
      expect(sent.map(({ events }) => events.length)).toEqual([7, 7, 8, 8])
      expect(sent[3]?.events[0]).toMatchObject({ deltas: [{ text: 'xx' }] })
    } finally {
      vi.useRealTimers()
    }
  })

  it('sends records to two ingresses concurrently, each with its own events', async () => {
    const { reporter, sent, mostUnderWay } = openReporter(() => new Promise(setImmediate))
    const attempts = ['ing_1', 'ing_2'].map((boot) =>
      reporter.open(envelopeOf({ id: `job_${boot}`, reply: { boot, shard: 0 } }), mergeSaid),
    )
    await Promise.all(attempts.map((attempt) => attempt.started()))
    expect(mostUnderWay()).toBe(2)
    for (const { to, events } of sent) expect(events.map((event) => event.job_id)).toEqual([`job_${to}`])
  })

  it('sends all text in order for any sequence of deltas and ticks', async () => {
    const steps = fc.array(fc.oneof(fc.string({ maxLength: 40 }), fc.constant(null)), { maxLength: 80 })
    await fc.assert(
      fc.asyncProperty(steps, async (texts) => {
        const { reporter, events } = openReporter(() => new Promise(setImmediate))
        const attempt = reporter.open(envelopeOf(), mergeSaid)
        void attempt.started()
        for (const text of texts) {
          if (text === null) await new Promise(setImmediate)
          else await attempt.event({ text })
        }
        await attempt.completed()
        expect(events().map((event) => event.seq)).toEqual(events().map((_, index) => index + 1))
        expect(textOfEvents(events())).toBe(texts.join(''))
      }),
      { numRuns: 50 },
    )
  })

  it('splits events into records below 1 MB, whatever the length of their JSON', async () => {
    for (const character of ['x', '漢', '\u0001']) {
      const gate = shutGate()
      const { reporter, sent, events } = openReporter(gate.wait)
      const attempt = reporter.open(envelopeOf(), mergeSaid)
      const started = attempt.started()
      let chars = 0
      for (; chars < 900 * KIB; chars += 4 * KIB) await attempt.event({ text: character.repeat(4 * KIB) })
      const completed = attempt.completed()
      gate.open()
      await Promise.all([started, completed])
      for (const { bytes } of sent) expect(bytes).toBeLessThan(1_000_000)
      expect(textOfEvents(events())).toBe(character.repeat(chars))
    }
  })

  it('fails a delta larger than a record with internal_error, and sends the next delta', async () => {
    const { reporter, events } = openReporter()
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    await attempt.started()
    for (const text of ['x'.repeat(513 * KIB), '\u0001'.repeat(100 * KIB)]) {
      await expect((async () => attempt.event({ text }))()).rejects.toMatchObject({ code: 'internal_error' })
    }
    await attempt.event({ text: 'y'.repeat(500 * KIB) })
    await attempt.failed({ code: 'internal_error', message: 'x', param: null })
    expect(events().map((event) => event.type)).toEqual(['started', 'delta', 'failed'])
    expect(events().map((event) => event.seq)).toEqual([1, 2, 3])
  })

  it('repeats a refused record until the broker accepts it', async () => {
    let refusals = 0
    const { reporter, events } = openReporter(async () => {
      if (refusals++ < 2) throw new Error('the broker is away')
    })
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    const started = attempt.started()
    await attempt.event({ text: 'kept' })
    await started
    await attempt.completed()
    expect(refusals).toBeGreaterThan(2)
    expect(events().map((event) => event.type)).toEqual(['started', 'delta', 'completed'])
    expect(textOfEvents(events())).toBe('kept')
  })

  it('fails only the attempt whose event the broker refuses permanently, and sends all other events', async () => {
    const sent: JobEvent[] = []
    const send: Broker['send'] = async (_channel, _partition, _key, value) => {
      if (value.length > 2 * KIB) throw new ServiceError('request_too_large', 'Too large.')
      sent.push(...ReplyRecord.parse(JSON.parse(value.toString())).events)
    }
    const reporter = new Reporter({ send } as Broker, 'wrk_1', silentLog)
    const attempts = ['job_1', 'job_2', 'job_3'].map((id) => reporter.open(envelopeOf({ id }), mergeSaid))
    const [, large] = attempts
    await Promise.all(attempts.map((attempt) => attempt.started()))
    for (const attempt of attempts) void attempt.event({ text: attempt === large ? 'x'.repeat(4 * KIB) : 'small' })
    await Promise.all(attempts.map((attempt) => attempt.completed()))
    const said = (id: string) => sent.filter(({ job_id }) => job_id === id).map(({ type, seq }) => `${seq} ${type}`)
    expect(said('job_1')).toEqual(['1 started', '2 delta', '3 completed'])
    expect(said('job_3')).toEqual(['1 started', '2 delta', '3 completed'])
    // One message was lost, so the caller receives a failure instead of incomplete output. The call has then ended, and later events are ignored.
    expect(said('job_2').slice(0, 2)).toEqual(['1 started', '2 failed'])
    expect(sent.find(({ type }) => type === 'failed')).toMatchObject({
      error: {
        code: 'internal_error',
        message: expect.stringContaining('larger than the maximum record size of Kafka'),
      },
    })
    expect(() => large?.event({ text: 'more' })).toThrow('larger than the maximum record size of Kafka')
  })

  it('applies backpressure while 1 MiB of output is unsent', async () => {
    const gate = shutGate()
    const { reporter, events } = openReporter(gate.wait)
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    void attempt.started()
    await new Promise(setImmediate)
    let said = 0
    const speaking = (async () => {
      for (; said < 3_000; said++) await attempt.event({ text: 'x'.repeat(KIB) })
    })()
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect(said).toBeGreaterThan(900)
    expect(said).toBeLessThan(1_200)
    gate.open()
    await speaking
    await attempt.completed()
    expect(textOfEvents(events())).toHaveLength(3_000 * KIB)
  })

  it('drops the events for a lost ingress, and unblocks the attempts that produce them', async () => {
    const gate = shutGate()
    const { reporter, sent } = openReporter(gate.wait)
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    const started = attempt.started()
    await new Promise(setImmediate)
    const completed = attempt.completed()
    reporter.drop('ing_1')
    await Promise.all([completed, attempt.failed({ code: 'internal_error', message: 'x', param: null })])
    gate.open()
    await until(() => sent.length === 1)
    await new Promise(setImmediate)
    expect(sent.flatMap((record) => record.events).map((event) => event.type)).toEqual(['started'])
    reporter.close()
    await Promise.race([started, new Promise(setImmediate)])
  })
})
