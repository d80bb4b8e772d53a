import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Batcher, type BatcherOptions } from '#shared/engines/batching/batcher.ts'
import type { Embedded, EmbeddingEngine } from '#shared/engines/engine.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { vectorOf } from '../../support/embeddings/embeddings.ts'
import { failureOf } from '../../support/sdk.ts'
import { until } from '../../support/stack.ts'

interface Call {
  readonly texts: readonly string[]
  readonly signal: AbortSignal
  answer(tokens?: number): void
  fail(error: ServiceError): void
}

/** Opens an embedding engine. The test answers its calls. */
function openScripted(): EmbeddingEngine & { readonly calls: Call[] } {
  const calls: Call[] = []
  return {
    calls,
    embed: (texts, { signal }) =>
      new Promise<Embedded>((resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason))
        const answer = (tokens = texts.length) =>
          resolve({ vectors: texts.map((text) => vectorOf(text, 8)), tokens, tokensEach: undefined })
        calls.push({ texts, signal, answer, fail: reject })
      }),
    close: async () => {},
  }
}

const OPTIONS: BatcherOptions = { inputsMax: 4, tokensMax: 1_000, waitMs: 1, callsMax: 1 }

function open(options: Partial<BatcherOptions> = {}) {
  const engine = openScripted()
  const batcher = new Batcher(engine, { ...OPTIONS, ...options })
  /** Starts a job that embeds these texts. */
  const start = (texts: readonly string[], { tokens = 1, signal = new AbortController().signal } = {}) => {
    const vectors: Float32Array[] = []
    const counted: number[] = []
    const ended = batcher.embed(
      texts.map((text) => ({ text, tokens })),
      signal,
      (index, vector, count) => {
        vectors[index] = vector
        counted[index] = count
      },
    )
    ended.catch(() => {})
    return { vectors, counted, ended }
  }
  /** Waits until the engine has received the call with this number. The first call has the number 0. */
  const call = (number: number) => until(() => engine.calls[number])
  return { engine, batcher, start, call }
}

/** Waits until pending promises and timers have run. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 20))

const TOO_LONG = new ServiceError('context_length_exceeded', 'Input 1 has 600 tokens.', { param: 'input[1]' })

describe('the embeddings batcher', () => {
  it('sends a text at once if no call is in flight', async () => {
    const { start, call } = open({ waitMs: 60_000 })
    const job = start(['a'])
    ;(await call(0)).answer()
    await job.ended
    expect(job.vectors).toEqual([vectorOf('a', 8)])
  })

  it('combines texts of the same tick into one call', async () => {
    const { start, call, engine } = open({ waitMs: 60_000 })
    for (const text of ['a', 'b', 'c']) start([text])
    expect((await call(0)).texts).toEqual(['a', 'b', 'c'])
    expect(engine.calls).toHaveLength(1)
  })

  it('delays texts for at most waitMs while a call is in flight', async () => {
    const { start, call, engine } = open({ callsMax: 2, waitMs: 5 })
    start(['a'])
    await call(0)
    start(['b'])
    start(['c'])
    expect(engine.calls).toHaveLength(1)
    expect((await call(1)).texts).toEqual(['b', 'c'])
  })

  it('sends a full batch without a delay while a call is in flight', async () => {
    const { start, call } = open({ callsMax: 2, waitMs: 60_000 })
    start(['a'])
    await call(0)
    for (const text of ['b', 'c', 'd', 'e']) start([text])
    expect((await call(1)).texts).toEqual(['b', 'c', 'd', 'e'])
  })

  it('has at most callsMax calls in flight, and sends waiting texts when a call ends', async () => {
    const { start, call, engine } = open({ callsMax: 2, waitMs: 0 })
    for (const text of ['a', 'b', 'c']) {
      start([text])
      await settled()
    }
    expect(engine.calls.map(({ texts }) => texts)).toEqual([['a'], ['b']])
    engine.calls[1]?.answer()
    expect((await call(2)).texts).toEqual(['c'])
  })

  it('splits the texts of a job into calls of at most inputsMax texts', async () => {
    const { start, call } = open()
    const job = start(['1', '2', '3', '4', '5'])
    expect((await call(0)).texts).toEqual(['1', '2', '3', '4'])
    ;(await call(0)).answer()
    expect((await call(1)).texts).toEqual(['5'])
    ;(await call(1)).answer()
    await job.ended
    expect(job.vectors).toEqual(['1', '2', '3', '4', '5'].map((text) => vectorOf(text, 8)))
  })

  it('sends calls of at most tokensMax tokens, and sends a larger text alone', async () => {
    const { start, call } = open({ tokensMax: 100 })
    start(['1', '2', '3'], { tokens: 50 })
    start(['long'], { tokens: 500 })
    expect((await call(0)).texts).toEqual(['1'])
    ;(await call(0)).answer()
    expect((await call(1)).texts).toEqual(['long'])
    ;(await call(1)).answer()
    expect((await call(2)).texts).toEqual(['2', '3'])
  })

  it('sends a text that occurs in several jobs once, and returns the vector to each job', async () => {
    const { start, call } = open()
    const jobs = [start(['a', 'b', 'a']), start(['a'])]
    const first = await call(0)
    expect(first.texts.toSorted()).toEqual(['a', 'b'])
    first.answer(10)
    await Promise.all(jobs.map(({ ended }) => ended))
    expect(jobs.map(({ vectors }) => vectors)).toEqual([
      ['a', 'b', 'a'].map((text) => vectorOf(text, 8)),
      [vectorOf('a', 8)],
    ])
    expect(jobs.map(({ counted }) => counted)).toEqual([[5, 5, 5], [5]])
  })

  it('takes texts from all jobs round robin, so that a large job does not delay a small job', async () => {
    const { start, call } = open()
    start(Array.from({ length: 100 }, (_, i) => `big ${i}`))
    start(['small 1'])
    start(['small 2'])
    expect((await call(0)).texts).toEqual(['big 0', 'small 1', 'small 2', 'big 1'])
  })

  it('puts at most half of the waiting jobs into a call if another call can start immediately', async () => {
    const { start, call } = open({ callsMax: 2, inputsMax: 100, waitMs: 0 })
    for (let i = 0; i < 40; i++) start([`a ${i}`, `b ${i}`])
    const [first, second] = [await call(0), await call(1)]
    expect(first.texts).toHaveLength(40)
    expect(second.texts).toHaveLength(40)
    expect(first.texts[0]).toBe('a 0')
    expect(second.texts[0]).toBe('a 20')
  })

  it('reserves the last concurrent call for jobs that have no call in flight', async () => {
    const { start, call, engine } = open({ callsMax: 3, waitMs: 0 })
    start(Array.from({ length: 100 }, (_, i) => `big ${i}`))
    await call(1)
    await settled()
    expect(engine.calls).toHaveLength(2)
    start(['small'])
    expect((await call(2)).texts).toEqual(['small'])
  })

  it('repeats a refused call separately for each job, and fails only the job with the faulty text', async () => {
    const { start, call, engine } = open({ callsMax: 3 })
    const [good, bad, other] = [start(['a']), start(['b', 'c']), start(['d'])]
    ;(await call(0)).fail(TOO_LONG)
    await call(3)
    expect(engine.calls.slice(1).map(({ texts }) => texts)).toEqual([['a'], ['b', 'c'], ['d']])
    engine.calls[1]?.answer()
    engine.calls[2]?.fail(TOO_LONG)
    engine.calls[3]?.answer()
    await Promise.all([good.ended, other.ended])
    expect(await failureOf(bad.ended)).toMatchObject({ code: 'context_length_exceeded', param: 'input[1]' })
  })

  it('reports a refused text by the index in its job, not in the call', async () => {
    const { start, call } = open()
    const job = start(['1', '2', '3', '4', '5', '6'])
    ;(await call(0)).answer()
    ;(await call(1)).fail(TOO_LONG)
    expect(await failureOf(job.ended)).toMatchObject({ message: 'Input 5 has 600 tokens.', param: 'input[5]' })
  })

  it('fails every job of a call with upstream_error, without a retry, if the server fails', async () => {
    const { start, call, engine } = open()
    const jobs = [start(['a']), start(['b'])]
    ;(await call(0)).fail(new ServiceError('upstream_error', 'It broke.'))
    for (const { ended } of jobs) expect(await failureOf(ended)).toMatchObject({ code: 'upstream_error' })
    await settled()
    expect(engine.calls).toHaveLength(1)
  })

  it('does not send the waiting text of a cancelled job', async () => {
    const { start, call, engine } = open()
    start(['a'])
    await call(0)
    const leave = new AbortController()
    const job = start(['b'], { signal: leave.signal })
    start(['c'])
    await settled()
    leave.abort(new Error('disconnected'))
    expect(await failureOf(job.ended)).toMatchObject({ message: 'disconnected' })
    engine.calls[0]?.answer()
    expect((await call(1)).texts).toEqual(['c'])
  })

  it('completes a call for the other jobs if one job of the call is cancelled', async () => {
    const { start, call } = open()
    const leave = new AbortController()
    start(['a'], { signal: leave.signal })
    const other = start(['b'])
    const first = await call(0)
    leave.abort()
    expect(first.signal.aborted).toBe(false)
    first.answer()
    await other.ended
    expect(other.vectors).toEqual([vectorOf('b', 8)])
  })

  it('aborts a call if all jobs of the call are cancelled, and sends the next call', async () => {
    const { start, call } = open()
    const leave = new AbortController()
    for (const text of ['a', 'b']) start([text], { signal: leave.signal })
    const first = await call(0)
    const next = start(['c'])
    leave.abort()
    expect(first.signal.aborted).toBe(true)
    ;(await call(1)).answer()
    await next.ended
  })

  it('fails all waiting and running jobs with overloaded when the batcher is closed', async () => {
    const { start, call, batcher } = open()
    const running = start(['a'])
    const first = await call(0)
    const waiting = start(['b'])
    await batcher.close()
    expect(first.signal.aborted).toBe(true)
    for (const { ended } of [running, waiting]) expect(await failureOf(ended)).toMatchObject({ code: 'overloaded' })
  })

  it('returns the right vectors and token counts for random jobs, batches and refused calls', async () => {
    const Texts = fc.array(fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'), { minLength: 1, maxLength: 12 })
    const Jobs = fc.array(Texts, { minLength: 1, maxLength: 8 })
    const Options = fc.record({
      inputsMax: fc.integer({ min: 1, max: 5 }),
      tokensMax: fc.integer({ min: 1, max: 9 }),
      callsMax: fc.integer({ min: 1, max: 3 }),
    })
    await fc.assert(
      fc.asyncProperty(Jobs, Options, fc.infiniteStream(fc.nat(3)), async (jobs, options, whims) => {
        const engine: EmbeddingEngine = {
          async embed(texts) {
            const whim = whims.next().value
            for (let i = 0; i < whim; i++) await new Promise((resolve) => setImmediate(resolve))
            if (whim === 3 && texts.length > 1) throw TOO_LONG
            return { vectors: texts.map((text) => vectorOf(text, 8)), tokens: texts.length * 7, tokensEach: undefined }
          },
          close: async () => {},
        }
        const batcher = new Batcher(engine, { ...options, waitMs: 0 })
        const ends = jobs.map(async (texts) => {
          const found: [Float32Array, number][] = []
          const asked = texts.map((text) => ({ text, tokens: 2 }))
          const { signal } = new AbortController()
          const ended = batcher.embed(asked, signal, (index, vector, tokens) => {
            expect(found[index]).toBe(undefined)
            found[index] = [vector, tokens]
          })
          const error = await ended.then(
            () => undefined,
            (error: unknown) => error,
          )
          if (error) expect(error).toMatchObject({ code: TOO_LONG.code })
          else expect(found).toEqual(texts.map((text) => [vectorOf(text, 8), 7]))
        })
        await Promise.all(ends)
      }),
      { numRuns: 200 },
    )
  })
})
