import { describe, expect, it, test } from 'vitest'
import type { JobEvent } from '#schemas/event.ts'
import { AttachedJob, type JobOwner } from '#shared/jobs/attached/attached-job.ts'
import { envelopeOf, mergeSaid, type Said, textOf } from '../../../support/jobs/jobs.ts'

const KIB = 1024

/** Opens a job whose owner only records, in `asked`, the calls that the job makes. The returned functions pass an event of a worker to the job. */
function openJob(options: { stream?: boolean } = {}) {
  const asked: string[] = []
  const owner: JobOwner = {
    onOutcome: (_job, outcome) =>
      asked.push(outcome.type === 'failed' ? `failed ${outcome.error.message}` : outcome.type),
    onOverflow: () => asked.push('overflow'),
    onPause: (_job, isPaused) => asked.push(isPaused ? 'pause' : 'resume'),
    onStaleWorker: (_job, worker) => asked.push(`intruder ${worker}`),
  }
  const isOutput = (delta: unknown) => (delta as Said).text !== ''
  const job = new AttachedJob(envelopeOf({ stream: options.stream ?? true }), owner, { merge: mergeSaid, isOutput })
  const say = (seq: number, text: string, more: { worker?: string; attempt?: number } = {}) =>
    job.onEvent(more.worker ?? 'wrk_1', { ...head(seq, more.attempt), type: 'delta', deltas: [{ text }] })
  const tell = (seq: number, type: 'started' | 'completed' | 'handed_back', worker = 'wrk_1', attempt = 1) =>
    job.onEvent(worker, { ...head(seq, attempt), type, deltas: [] } as JobEvent)
  return { job, asked, say, tell }
}

function head(seq: number, attempt = 1): { job_id: string; attempt: number; seq: number } {
  return { job_id: 'job_1', attempt, seq }
}

async function textNow(job: AttachedJob): Promise<string> {
  return textOf((await job.next()) ?? [])
}

describe('an attached job', () => {
  it('returns the output of the worker in order, followed by the completion', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started')
    expect(job.state).toBe('running')
    say(2, 'a')
    say(3, 'b')
    expect(await textNow(job)).toBe('ab')
    say(4, 'c')
    tell(5, 'completed')
    expect(asked).toEqual(['completed'])
    job.finish()
    expect(await textNow(job)).toBe('c')
    expect(await job.next()).toBeUndefined()
  })

  it('without streaming has no time of first output if the attempt sends only its usage before it ends', () => {
    for (const end of [
      { type: 'failed', error: { code: 'upstream_error', message: '', param: null } },
      { type: 'handed_back' },
    ]) {
      const { job, asked, say, tell } = openJob({ stream: false })
      tell(1, 'started')
      say(2, 'usage')
      job.onEvent('wrk_1', { ...head(3), ...end } as JobEvent)
      expect(asked).toHaveLength(1)
      expect(job.firstOutputAtMs, end.type).toBeUndefined()
    }
  })

  it('wakes a waiting reader when output or the end arrives', async () => {
    const { job, say, tell } = openJob()
    const waiting = job.next()
    tell(1, 'started')
    say(2, 'late')
    expect(textOf((await waiting) ?? [])).toBe('late')
    const ended = job.next()
    job.finish()
    expect(await ended).toBeUndefined()
  })

  it('delivers output to the reader before the event loop processes the output of the next job', async () => {
    const jobs = ['a', 'b', 'c'].map((name) => ({ name, ...openJob() }))
    const read: string[] = []
    for (const { job, tell } of jobs) {
      tell(1, 'started')
      void job.next().then((events) => read.push(textOf(events ?? [])))
    }
    const readBefore: string[] = []
    // Each callback simulates a socket that delivers data to this job. All sockets are read in the same event-loop iteration.
    const turns = jobs.map(
      ({ name, say }) =>
        new Promise<void>((resolve) =>
          setImmediate(() => {
            readBefore.push(read.join(''))
            say(2, name)
            resolve()
          }),
        ),
    )
    await Promise.all(turns)
    expect(readBefore).toEqual(['', 'a', 'ab'])
  })

  it('returns all output at once if the caller does not stream', async () => {
    const { job, say, tell } = openJob({ stream: false })
    const whole = job.next()
    tell(1, 'started')
    say(2, 'a')
    say(3, 'b')
    tell(4, 'completed')
    job.finish()
    expect(textOf((await whole) ?? [])).toBe('ab')
  })

  test.each([
    ['is repeated', [2, 2, 3], 'a1a3', []],
    ['has already been processed', [2, 3, 2, 4], 'a1a2a4', []],
    ['is missing', [2, 4], 'a1', ['lost']],
  ])(
    'with an output event whose sequence number %s returns the text "$2" and has the outcomes $3',
    async (_name, numbers, text, expected) => {
      const { job, asked, say, tell } = openJob()
      tell(1, 'started')
      for (const [index, number] of numbers.entries()) say(number, `a${index + 1}`)
      expect(asked).toEqual(expected)
      expect(await textNow(job)).toBe(text)
    },
  )

  it('ignores output and completion of a worker that has not reported the start', () => {
    const { asked, say, tell } = openJob()
    say(2, 'before any started')
    tell(2, 'completed')
    expect(asked).toEqual([])
  })

  it('accepts only the worker that started first, and ignores output of other workers', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started', 'wrk_1')
    tell(1, 'started', 'wrk_2')
    say(2, 'wrong', { worker: 'wrk_2' })
    say(2, 'right', { worker: 'wrk_1' })
    tell(3, 'completed', 'wrk_2')
    expect(asked).toEqual(['intruder wrk_2'])
    expect(await textNow(job)).toBe('right')
    expect(job.worker).toBe('wrk_1')
  })

  it('ignores a second start event of the worker of the job', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started')
    say(2, 'a')
    tell(1, 'started')
    say(3, 'b')
    expect(asked).toEqual([])
    expect(await textNow(job)).toBe('ab')
  })

  it('ignores output of all attempts except the current attempt', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started')
    job.requeue()
    expect([job.state, job.attempt, job.worker]).toEqual(['queued', 2, undefined])
    say(2, 'old', { attempt: 1 })
    tell(3, 'completed', 'wrk_1', 1)
    tell(1, 'started', 'wrk_1', 1)
    tell(1, 'started', 'wrk_9', 3)
    expect(job.state).toBe('queued')
    tell(1, 'started', 'wrk_2', 2)
    say(2, 'new', { worker: 'wrk_2', attempt: 2 })
    say(4, 'older still', { worker: 'wrk_1', attempt: 1 })
    expect(asked).toEqual([])
    expect(await textNow(job)).toBe('new')
  })

  it('drops the unread output of a failed attempt when the job is retried', async () => {
    const { job, say, tell } = openJob({ stream: false })
    tell(1, 'started')
    say(2, 'first attempt')
    job.requeue()
    tell(1, 'started', 'wrk_2', 2)
    say(2, 'second attempt', { worker: 'wrk_2', attempt: 2 })
    job.finish()
    expect(await textNow(job)).toBe('second attempt')
  })

  it('records whether the caller may have received output', () => {
    for (const [stream, seen] of [
      [true, true],
      [false, false],
    ] as const) {
      const { job, say, tell } = openJob({ stream })
      tell(1, 'started')
      say(2, '')
      expect(job.hasOutput).toBe(false)
      say(3, 'output')
      expect(job.hasOutput).toBe(seen)
    }
  })

  it('returns the output before a failure, and then throws the failure', async () => {
    const { job, say, tell } = openJob()
    tell(1, 'started')
    say(2, 'before')
    job.finish({ code: 'upstream_error', message: 'it broke', param: null })
    expect(await textNow(job)).toBe('before')
    await expect(job.next()).rejects.toMatchObject({ code: 'upstream_error', message: 'it broke' })
  })

  it('keeps the first end state, and ignores all later events', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started')
    job.finish({ code: 'timeout', message: 'too late', param: null })
    job.finish()
    say(2, 'after')
    say(9, 'far after')
    tell(3, 'completed')
    tell(1, 'started', 'wrk_2')
    expect(asked).toEqual([])
    await expect(job.next()).rejects.toMatchObject({ code: 'timeout' })
  })

  it('reports a failure or a requeue of the attempt to the ingress', () => {
    const { job, asked, tell } = openJob()
    tell(1, 'started')
    job.onEvent('wrk_1', { ...head(2), type: 'failed', error: { code: 'upstream_error', message: 'x', param: null } })
    tell(3, 'handed_back')
    expect(asked).toEqual(['failed x', 'handed_back'])
  })

  it('pauses the worker above 256 KiB of unread output, and resumes the worker after the output is read', async () => {
    const { job, asked, say, tell } = openJob()
    tell(1, 'started')
    for (let seq = 2; seq <= 5; seq++) say(seq, 'x'.repeat(63 * KIB))
    expect(asked).toEqual([])
    for (let seq = 6; seq <= 9; seq++) say(seq, 'x'.repeat(63 * KIB))
    expect(asked).toEqual(['pause'])
    await job.next()
    expect(asked).toEqual(['pause', 'resume'])
  })

  it('never pauses the worker if the response is not streamed', () => {
    const { asked, say, tell } = openJob({ stream: false })
    tell(1, 'started')
    for (let seq = 2; seq <= 9; seq++) say(seq, 'x'.repeat(63 * KIB))
    expect(asked).toEqual([])
  })

  it('fails at 8 MiB of unread output if the worker ignores the pause', () => {
    const { asked, say, tell } = openJob()
    tell(1, 'started')
    for (let seq = 2; !asked.includes('overflow'); seq++) {
      expect(seq).toBeLessThan(200)
      say(seq, 'x'.repeat(63 * KIB))
    }
    expect(asked).toEqual(['pause', 'overflow'])
  })
})
