import { describe, expect, it } from 'vitest'
import { planFaults } from './faults.ts'
import { planResearch } from './load/researches.ts'
import { type PlannedJob, planJob } from './load/workload.ts'

const FLEET = { ingress: 2, inference: 3, research: 2, scheduler: 2 }
const sortOf = (target: string) => target.replace(/-\d+$/, '')

describe('the plan of a chaos run', () => {
  it('is equal for equal seeds, and differs for different seeds', () => {
    expect(planFaults(1, 20, 60_000, FLEET)).toEqual(planFaults(1, 20, 60_000, FLEET))
    expect(planFaults(1, 20, 60_000, FLEET)).not.toEqual(planFaults(2, 20, 60_000, FLEET))
    expect(planJob(1, 17)).toEqual(planJob(1, 17))
    expect(planJob(1, 17)).not.toEqual(planJob(2, 17))
  })

  it.each([6, 20, 100])('with %i kills contains at least one kill of each role, sorted by time', (kills) => {
    const plan = planFaults(3, kills, 60_000, FLEET)
    const killed = plan.filter(({ kind }) => kind === 'kill').map(({ target }) => sortOf(target))
    expect(killed).toHaveLength(kills)
    expect(new Set(killed)).toEqual(new Set(['inference', 'research', 'ingress', 'scheduler', 'broker', 'database']))
    expect(plan.map(({ atMs }) => atMs)).toEqual(plan.map(({ atMs }) => atMs).toSorted((a, b) => a - b))
    for (const { atMs } of plan) expect(atMs).toBeLessThan(60_000)
  })

  it('contains deep research jobs that expect the same output as a run without faults', () => {
    const quiet = { tag: 'Tarn10000', text: 'Of Tarn10000.', report: 'aaaa', children: 3, steps: ['admit'] }
    const researches = Array.from({ length: 200 }, (_, i) => planResearch(5, i + 1, quiet))
    expect(planResearch(5, 1, quiet)).toEqual(researches[0])
    expect(planResearch(6, 1, quiet)).not.toEqual(researches[0])
    expect(new Set(researches.map(({ key }) => key)).size).toBe(200)
    for (const { call, expect: wanted } of researches) {
      const { tag = '' } = wanted.research ?? {}
      expect(tag).toHaveLength(quiet.tag.length)
      expect(wanted.text).toBe(`Of ${tag}.`)
      expect(JSON.stringify(call)).toContain(tag)
    }
    expect(new Set(researches.map(({ expect: wanted }) => wanted.text)).size).toBe(200)
    for (const is of [
      (job: PlannedJob) => job.expect.stream,
      (job: PlannedJob) => job.expect.is_cancelled,
      (job: PlannedJob) => job.isDoubled,
      (job: PlannedJob) => job.hangUps.length > 0,
    ])
      expect(researches.filter(is).length).toBeGreaterThan(4)
  })

  it('contains jobs of every kind in the planned proportions', () => {
    const jobs = Array.from({ length: 1_000 }, (_, i) => planJob(5, i))
    const share = (is: (job: (typeof jobs)[number]) => boolean) => jobs.filter(is).length / jobs.length
    expect(new Set(jobs.map(({ key }) => key)).size).toBe(1_000)
    for (const is of [
      (job: (typeof jobs)[number]) => job.expect.stream,
      (job: (typeof jobs)[number]) => job.cancelAfterMs !== undefined,
      (job: (typeof jobs)[number]) => job.runInMs !== undefined,
      (job: (typeof jobs)[number]) => job.priority === 'low',
      (job: (typeof jobs)[number]) => job.isDoubled,
      (job: (typeof jobs)[number]) => JSON.stringify(job.call).includes('fail='),
      (job: (typeof jobs)[number]) => job.hangUps.length > 0,
      (job: (typeof jobs)[number]) => JSON.stringify(job.call).includes('witness-1'),
    ])
      expect(share(is)).toBeGreaterThan(0.02)
  })
})
