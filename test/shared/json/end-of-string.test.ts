import fc from 'fast-check'
import { expect, it } from 'vitest'
import { endOfString } from '#shared/json/read.ts'

/** Simple implementation that inspects every byte. The result of the fast implementation must be equal. */
function slowly(json: Buffer, start: number, most: number): number {
  let end = start
  while (end < most && json[end] !== 0x22) end += json[end] === 0x5c ? 2 : 1
  return end
}

it('the search for the end of a JSON string returns the result of a byte-wise search, for any escapes and chunk boundaries', () => {
  const pieces = fc.array(fc.constantFrom('x'.repeat(70), 'x', '\\\\', '\\"', '\\n', '"', 'é', '\\'), { maxLength: 40 })
  fc.assert(
    fc.property(pieces, fc.nat(), (parts, cut) => {
      const json = Buffer.from(parts.join(''))
      const most = cut % (json.length + 1)
      expect(endOfString(json, 0, most)).toBe(slowly(json, 0, most))
    }),
    { numRuns: 2_000 },
  )
})
