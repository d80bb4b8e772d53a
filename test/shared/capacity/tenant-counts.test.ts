import { describe, expect, it } from 'vitest'
import { TenantCounts } from '#shared/capacity/fair-queue.ts'

describe('the counter of jobs per tenant', () => {
  it('equals a complete recount after any sequence of additions and removals', () => {
    const counts = new TenantCounts()
    const plain = new Map<string, number>()
    let random = 7
    for (let step = 0; step < 5_000; step++) {
      random = (Math.imul(random, 1_103_515_245) + 12_345) >>> 0
      // Chooses a tenant. Low numbers are more likely, because in practice a few tenants have most of the jobs.
      const tenant = `t${Math.min((random >>> 8) % 20, (random >>> 16) % 20)}`
      const has = plain.get(tenant) ?? 0
      const by = has > 0 && (random >>> 24) % 2 === 0 ? -1 : 1
      counts.change(tenant, by)
      plain.set(tenant, has + by)
      if (step % 50 > 0) continue
      for (const most of [0, 1, 2, 7, 1_000]) {
        expect(counts.sum(most)).toBe([...plain.values()].reduce((sum, each) => sum + Math.min(each, most), 0))
      }
    }
    const both = new TenantCounts()
    both.addAll(counts)
    both.addAll(counts)
    expect(both.sum(1_000)).toBe(2 * counts.sum(1_000))
    expect([...both.tenants()].toSorted()).toEqual([...counts.tenants()].toSorted())
  })
})
