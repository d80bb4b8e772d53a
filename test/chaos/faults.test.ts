import { describe, expect, it } from 'vitest'
import { planFaults } from './faults.ts'
import { planJob } from './load/workload.ts'

const FLEET = { ingress: 2, inference: 3, scheduler: 2 }
const sortOf = (target: string) => target.replace(/-\d+$/, '')

describe('the plan of a chaos run', () => {
  it('is the same for the same seed, and another for another', () => {
    expect(planFaults(1, 20, 60_000, FLEET)).toEqual(planFaults(1, 20, 60_000, FLEET))
    expect(planFaults(1, 20, 60_000, FLEET)).not.toEqual(planFaults(2, 20, 60_000, FLEET))
    expect(planJob(1, 17)).toEqual(planJob(1, 17))
    expect(planJob(1, 17)).not.toEqual(planJob(2, 17))
  })

  it.each([5, 20, 100])('kills each sort of process with %i kills, in time and in order', (kills) => {
    const plan = planFaults(3, kills, 60_000, FLEET)
    const killed = plan.filter(({ kind }) => kind === 'kill').map(({ target }) => sortOf(target))
    expect(killed).toHaveLength(kills)
    expect(new Set(killed)).toEqual(new Set(['inference', 'ingress', 'scheduler', 'broker', 'database']))
    expect(plan.map(({ atMs }) => atMs)).toEqual(plan.map(({ atMs }) => atMs).toSorted((a, b) => a - b))
    for (const { atMs } of plan) expect(atMs).toBeLessThan(60_000)
  })

  it('holds jobs of every sort', () => {
    const jobs = Array.from({ length: 1_000 }, (_, i) => planJob(5, i))
    const share = (is: (job: (typeof jobs)[number]) => boolean) => jobs.filter(is).length / jobs.length
    expect(new Set(jobs.map(({ key }) => key)).size).toBe(1_000)
    for (const is of [
      (job: (typeof jobs)[number]) => job.expect.stream,
      (job: (typeof jobs)[number]) => job.cancelAfterMs !== undefined,
      (job: (typeof jobs)[number]) => job.runInMs !== undefined,
      (job: (typeof jobs)[number]) => job.priority === 'low',
      (job: (typeof jobs)[number]) => job.isDoubled,
      (job: (typeof jobs)[number]) => job.script.includes('fail='),
      (job: (typeof jobs)[number]) => job.hangUps.length > 0,
      (job: (typeof jobs)[number]) => job.model === 'witness-1',
    ])
      expect(share(is)).toBeGreaterThan(0.02)
  })
})
