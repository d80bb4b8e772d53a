import { expect, it } from 'vitest'
import { REPLY_SHARDS, replyShard } from '#shared/jobs/records.ts'
import { newId } from '#shared/lib/id.ts'

it('a new id has the right prefix and length, and only letters and digits', () => {
  for (const length of [1, 8, 24, 20_000]) {
    const id = newId('job_', length)
    expect(id).toMatch(/^job_[0-9A-Za-z]+$/)
    expect(id).toHaveLength('job_'.length + length)
  }
  expect(newId('req_')).toHaveLength('req_'.length + 24)
})

it('a new id differs from 50,000 other ids', () => {
  const ids = new Set(Array.from({ length: 50_000 }, () => newId('', 12)))
  expect(ids.size).toBe(50_000)
})

it('each of the 54 characters of the alphabet is equally probable in a new id', () => {
  const counts = new Map<string, number>()
  for (const character of newId('', 540_000)) counts.set(character, (counts.get(character) ?? 0) + 1)
  expect(counts.size).toBe(54)
  // Each value is expected 10,000 times, with a standard deviation of 100. The limit is six standard deviations.
  for (const count of counts.values()) expect(Math.abs(count - 10_000)).toBeLessThan(600)
})

it('a boot id always has the same reply shard, and 1,000 boot ids use every shard', () => {
  expect(replyShard('ing_0000000000000000')).toBe(replyShard('ing_0000000000000000'))
  const shards = new Set(Array.from({ length: 1_000 }, () => replyShard(newId('ing_', 16))))
  expect(shards.size).toBe(REPLY_SHARDS)
})
