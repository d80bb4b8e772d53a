import { describe, expect, it } from 'vitest'
import type { JobEvent } from '#schemas/event.ts'
import type { ChannelRecord } from '#shared/broker/broker.ts'
import { REPLIES } from '#shared/jobs/records.ts'
import { Reporter } from '#shared/jobs/worker/reporter.ts'
import { envelopeOf, mergeSaid, openBroker, silentLog, textOfEvents } from '../../../../support/jobs/jobs.ts'

/** Opens a reporter and an ingress in one process. Also returns the messages that the ingress receives. */
async function openPassing() {
  const broker = await openBroker()
  const records: ChannelRecord[] = []
  await broker.receive(REPLIES, [0], (record) => records.push(record))
  const reporter = new Reporter(broker, 'wrk_1', silentLog)
  const events = () => records.flatMap(({ payload: said }) => (said as { events: JobEvent[] }).events)
  return { reporter, records, events }
}

const turn = () => new Promise(setImmediate)

describe('the reporter of a worker that runs in the same process as its ingress', () => {
  it('delivers output to the ingress before the event loop reads the next socket', async () => {
    const { reporter, events } = await openPassing()
    const streams = ['job_1', 'job_2', 'job_3'].map((id) => reporter.open(envelopeOf({ id }), mergeSaid))
    const heard: string[][] = []
    // Each callback simulates a socket that delivers data to this stream. All sockets are read in the same event-loop iteration.
    const reads = streams.map(
      (stream) =>
        new Promise<void>((resolve) =>
          setImmediate(() => {
            heard.push(events().map(({ job_id }) => job_id))
            for (const text of ['a', 'b']) void stream.event({ text })
            resolve()
          }),
        ),
    )
    await Promise.all(reads)
    await turn()
    expect(heard).toEqual([[], ['job_1'], ['job_1', 'job_2']])
    expect(events().map((event) => textOfEvents([event]))).toEqual(['ab', 'ab', 'ab'])
  })

  it('numbers the events of an attempt from 1 without gaps, and sends all output before the end event', async () => {
    const { reporter, events } = await openPassing()
    const attempt = reporter.open(envelopeOf({ attempt: 7 }), mergeSaid)
    await attempt.started()
    await attempt.event({ text: 'a', apart: true })
    await turn()
    await attempt.event({ text: 'b', apart: true })
    await attempt.failed({ code: 'timeout', message: 'Too late.', param: null })
    await turn()
    expect(events().map(({ seq, type }) => `${seq} ${type}`)).toEqual(['1 started', '2 delta', '3 delta', '4 failed'])
    expect(textOfEvents(events())).toBe('ab')
    expect(new Set(events().map(({ job_id, attempt }) => `${job_id} ${attempt}`))).toEqual(new Set(['job_1 7']))
  })

  it('yields to the event loop during a burst of 800,000 characters', async () => {
    const { reporter, events } = await openPassing()
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    let turns = 0
    const count = () => {
      turns++
      if (events().at(-1)?.type !== 'completed') setImmediate(count)
    }
    setImmediate(count)
    const text = 'x'.repeat(40_000)
    for (let i = 0; i < 20; i++) await attempt.event({ text })
    await attempt.completed()
    await turn()
    expect(textOfEvents(events())).toHaveLength(800_000)
    expect(turns).toBeGreaterThan(5)
  })

  it('refuses an event that is too large for a broker record', async () => {
    const { reporter } = await openPassing()
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    expect(() => attempt.event({ text: 'x'.repeat(600_000) })).toThrow('is larger than 524288 bytes')
  })

  it('sends the same message as an object and as bytes', async () => {
    const { reporter, records } = await openPassing()
    const attempt = reporter.open(envelopeOf(), mergeSaid)
    await attempt.event({ text: 'a' })
    await attempt.completed()
    await turn()
    for (const { payload: said, value } of records) expect(JSON.parse(value.toString())).toEqual(said)
  })
})
