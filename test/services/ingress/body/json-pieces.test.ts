/* Tests of incremental JSON parsing and writing, which must have exactly the results of JSON.parse and JSON.stringify. */

import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { JsonSyntaxError, PIECE_BYTES, readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { runToEnd, runYielding } from '#shared/lib/yielding.ts'

const read = (text: string) => runToEnd(readJson(Buffer.from(text)))
const write = (value: unknown) => [...writeJson(value)].join('')

/**
 * Generates JSON values that are larger than one piece of the incremental parser, so that the parser splits them at different positions.
 */
const large = fc
  .record({ value: fc.jsonValue({ maxDepth: 4 }), unit: fc.string({ unit: 'grapheme', minLength: 1 }), at: fc.nat(9) })
  .map(({ value, unit, at }) => {
    const long = unit.repeat(Math.ceil((PIECE_BYTES + at) / unit.length))
    return {
      a: [value, long, { [long]: value, b: Array(at).fill(long) }],
      c: Array(PIECE_BYTES / 4).fill(at),
      d: value,
    }
  })

describe('incremental JSON parsing', () => {
  it('returns the same value as JSON.parse', () => {
    fc.assert(
      fc.property(large, fc.constantFrom(0, 1, 3), (value, indent) => {
        const text = JSON.stringify(value, undefined, indent)
        expect(JSON.stringify(read(text))).toBe(JSON.stringify(JSON.parse(text)))
      }),
      { numRuns: 30 },
    )
  })

  it.each([
    ['escapes', `"${'\\u00e9\\n\\"\\\\'.repeat(PIECE_BYTES / 8)}"`],
    ['escaped surrogate pairs', `["${'a\\ud83d\\ude00'.repeat(PIECE_BYTES / 8)}"]`],
    ['characters of four bytes', `["${'😀'.repeat(PIECE_BYTES / 2)}"]`],
    [
      'duplicate keys, including __proto__',
      `{"__proto__":1,"a":"${'x'.repeat(PIECE_BYTES)}","a":2,"__proto__":{"b":3}}`,
    ],
    ['blanks', `${' '.repeat(PIECE_BYTES)}[ 1 ,\n${' '.repeat(PIECE_BYTES)}2\t]\r\n`],
    ['an empty list after a long text', `["${'x'.repeat(PIECE_BYTES)}",[],{},[ ]]`],
    ['a long number', `[${'1'.repeat(300)},${'2,'.repeat(PIECE_BYTES)}3e5]`],
  ])('returns the value and key order of JSON.parse for %s', (_, text) => {
    expect(read(text)).toEqual(JSON.parse(text))
    expect(Object.keys(read(text) as object)).toEqual(Object.keys(JSON.parse(text)))
  })

  it.each(['\\u00e9', '\\\\', '\\"', 'a\\\\\\"', 'é', '😀', '\\ud83d\\ude00', '\\n\\\\u0041'])(
    'splits a long string of %s only between characters',
    (unit) => {
      for (let at = 0; at < 12; at++) {
        const text = `["${'x'.repeat(at)}${unit.repeat((PIECE_BYTES + 64) / unit.length)}",${at}]`
        expect(read(text)).toEqual(JSON.parse(text))
      }
    },
  )

  it.each([
    '[1,,2]',
    '[1,]',
    '[,1]',
    '[1 2]',
    '{"a":1,}',
    '{,}',
    '{"a" 1}',
    '[1}',
    '{"a":1]',
    '["a]',
    '[1',
    '{"a"',
    '[tru]',
    '',
  ])('refuses the invalid value %j before, after and inside large values', (wrong) => {
    const long = `"${'x'.repeat(PIECE_BYTES)}"`
    for (const text of [
      `[${long},${wrong}]`,
      `[${wrong},${long}]`,
      `{"a":${long},"b":${wrong}}`,
      `${long}${wrong || 'x'}`,
    ]) {
      expect(() => JSON.parse(text)).toThrow(SyntaxError)
      expect(() => read(text)).toThrow(JsonSyntaxError)
    }
  })

  it('accepts or refuses the same texts as JSON.parse if one byte of a valid text is changed', () => {
    fc.assert(
      fc.property(large, fc.nat(), fc.constantFrom('', ',', ']', '}', '"', ':', '\\'), (value, place, put) => {
        const text = JSON.stringify(value)
        const at = place % text.length
        const broken = (text.slice(0, at) + put + text.slice(at + 1)).toWellFormed()
        expect(outcome(() => read(broken))).toBe(outcome(() => JSON.parse(broken)))
      }),
      { numRuns: 40 },
    )
  })
})

/** Returns the parsed value as text, or `refused` if `parse` throws. */
function outcome(parse: () => unknown): string {
  try {
    return JSON.stringify(parse())
  } catch {
    return 'refused'
  }
}

describe('incremental JSON writing', () => {
  it('returns the same text as JSON.stringify', () => {
    fc.assert(
      fc.property(large, (value) => {
        expect(write(value)).toBe(JSON.stringify(value))
      }),
      { numRuns: 30 },
    )
  })

  it('omits values without a JSON form, and calls toJSON', () => {
    const value = { a: undefined, b: [undefined, () => {}], c: new Date(0), d: 'x'.repeat(PIECE_BYTES), e: '\ud800' }
    expect(write(value)).toBe(JSON.stringify(value))
  })

  it('returns pieces of less than 300,000 characters', () => {
    const value = { a: 'x'.repeat(5_000_000), b: Array(100_000).fill({ c: 'd' }) }
    for (const piece of writeJson(value)) expect(piece.length).toBeLessThan(300_000)
  })
})

describe('incremental JSON writing of many small values', () => {
  it('serializes the items of an array in groups', () => {
    const value = [Array(200_000).fill(1), Array(100_000).fill({}), Array(50_000).fill({ a: 'b', c: [null] })]
    const stringify = vi.spyOn(JSON, 'stringify')
    const text = write(value)
    const calls = stringify.mock.calls.length
    stringify.mockRestore()
    expect(text).toBe(JSON.stringify(value))
    expect(calls, 'calls of JSON.stringify for 600,000 values').toBeLessThan(2_000)
  })

  it('yields at least once per 512 members of an object', () => {
    const value = Object.fromEntries(Array.from({ length: 40_000 }, (_, at) => [`f${at}`, at]))
    expect([...writeJson(value)].length, 'yields for 40,000 members').toBeGreaterThan(40_000 / 512)
  })
})

describe('work that yields to the event loop', () => {
  it('runs in slices of some milliseconds between other tasks', async () => {
    const busy = (ms: number) => {
      const end = performance.now() + ms
      while (performance.now() < end);
    }
    let rounds = 0
    let areDone = false
    const count = () => {
      rounds++
      if (!areDone) setImmediate(count)
    }
    setImmediate(count)
    function* work() {
      for (let i = 0; i < 20; i++) yield busy(1)
    }
    await Promise.all(Array.from({ length: 10 }, () => runYielding(work())))
    areDone = true
    // The work takes 200 ms in slices of 5 ms, and the event loop runs between the slices. Without slices, the event loop would run only
    // about four times.
    expect(rounds).toBeGreaterThan(20)
  })

  it('ends if its signal aborts', async () => {
    const abort = new AbortController()
    function* endless() {
      for (;;) yield
    }
    const work = runYielding(endless(), abort.signal)
    setTimeout(() => abort.abort(new Error('enough')), 10)
    await expect(work).rejects.toThrow('enough')
  })
})
