import { expect, it } from 'vitest'
import { ReadingTimes } from '#shared/search/documents/documents.ts'

it('a project must pause only while another active project has used less reading time', () => {
  const times = new ReadingTimes()
  times.add('many', 9_000, 1_000)
  expect(times.isAhead('many'), 'alone').toBe(false)
  times.add('few', 10, 1_100)
  expect(times.isAhead('many'), 'next to a new project').toBe(true)
  expect(times.isAhead('few')).toBe(false)
  times.add('many', 10, 3_200)
  expect(times.isAhead('many'), 'two seconds after the last document of the other project').toBe(false)
})

it('a project that becomes active starts at most 250 ms below the reading time of the others', () => {
  const times = new ReadingTimes()
  times.add('many', 9_000, 0)
  times.add('few', 240, 10)
  expect(times.isAhead('many')).toBe(true)
  times.add('few', 20, 20)
  expect(times.isAhead('few')).toBe(true)
  expect(times.isAhead('many')).toBe(false)
})
