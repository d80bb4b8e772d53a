import fc from 'fast-check'
import { describe, expect, it, test } from 'vitest'
import { mergeGenerateEvents } from '#shared/kinds/generate/generate.ts'
import { EventBuffer, sizeOf } from '#shared/lib/buffers.ts'
import { mergeSaid, type Said, textOf } from '../../support/jobs/jobs.ts'

const saids = fc.array(fc.record({ text: fc.string(), apart: fc.boolean() }), { maxLength: 60 })

describe('the buffer of output deltas', () => {
  it('returns the text of all deltas in order, however often it is emptied', () => {
    fc.assert(
      fc.property(fc.array(saids), (batches) => {
        const buffer = new EventBuffer(mergeSaid)
        const taken: unknown[] = []
        for (const batch of batches) {
          for (const said of batch) buffer.push(said)
          taken.push(...buffer.takeAll())
        }
        expect(textOf(taken)).toBe(textOf(batches.flat()))
      }),
    )
  })

  it('merges adjacent mergeable deltas, and keeps others separate', () => {
    const buffer = new EventBuffer(mergeSaid)
    for (const text of ['a', 'b']) buffer.push({ text })
    buffer.push({ text: 'X', apart: true })
    for (const text of ['c', 'd']) buffer.push({ text })
    expect(buffer.takeAll().map((delta) => (delta as Said).text)).toEqual(['ab', 'X', 'cd'])
  })

  it('counts the bytes of its deltas, and is empty after all deltas are taken', () => {
    const buffer = new EventBuffer(mergeSaid)
    expect([buffer.isEmpty, buffer.bytes]).toEqual([true, 0])
    for (let i = 1; i <= 100; i++) {
      buffer.push({ text: 'x'.repeat(1_000) })
      expect(buffer.bytes).toBeGreaterThanOrEqual(i * 1_000)
    }
    expect(buffer.isEmpty).toBe(false)
    buffer.takeAll()
    expect([buffer.isEmpty, buffer.bytes]).toEqual([true, 0])
    expect(buffer.takeAll()).toEqual([])
  })

  it('does not modify the deltas that it merges', () => {
    const buffer = new EventBuffer(mergeGenerateEvents)
    const deltas = ['a', 'b', 'c'].map((text) => Object.freeze({ type: 'text', choice: 0, text }))
    for (const delta of deltas) buffer.push(delta)
    expect(buffer.takeAll()).toEqual([{ type: 'text', choice: 0, text: 'abc' }])
  })
})

describe('the size estimate of a delta', () => {
  it('is at least a sixth and at most eight times the length of its JSON in bytes', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const bytes = Buffer.byteLength(JSON.stringify({ value }))
        const size = sizeOf({ value })
        return size >= bytes / 6 && size <= bytes * 8 + 32
      }),
    )
  })

  test.each([
    ['control characters', { text: '\u0001'.repeat(10_000) }],
    ['lone surrogates', { text: '\ud800'.repeat(10_000) }],
    ['Chinese text', { text: '漢'.repeat(10_000) }],
    [
      'log probabilities',
      { logprobs: Array.from({ length: 500 }, () => ({ token: 'a', logprob: -0.1234567890123456, bytes: [97] })) },
    ],
  ])('is at least a sixth of the JSON bytes for %s', (_name, delta) => {
    expect(sizeOf(delta)).toBeGreaterThanOrEqual(Buffer.byteLength(JSON.stringify(delta)) / 6)
  })
})
