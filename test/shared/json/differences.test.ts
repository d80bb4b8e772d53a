import { expect, test } from 'vitest'
import { differencesOf } from '#shared/json/differences.ts'

test('the JSON comparison lists each difference with its path, in at most 9 short lines', () => {
  expect(differencesOf({ a: [1, { b: 2 }], c: 3 }, { a: [1, { b: 4 }], d: null })).toEqual([
    'a.1.b: 2 ≠ 4',
    'c: 3 ≠ nothing',
    'd: nothing ≠ null',
  ])
  expect(differencesOf([1], { 0: 1 })).toEqual(['the value: [1] ≠ {"0":1}'])
  const many = differencesOf(Array(100).fill('x'), Array(100).fill('y'.repeat(10_000)))
  expect(many).toHaveLength(9)
  expect(Math.max(...many.map((line) => line.length))).toBeLessThan(200)
})
