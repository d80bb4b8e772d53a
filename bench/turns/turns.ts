import type { Section } from '../section.ts'
import { SLOTS } from './fleet.ts'
import { JOB_MS, measureTurns } from './measure.ts'
import { renderTurns } from './report.ts'

/** How long one tenant waits beside a flood of another. */
export const TURNS: Section = {
  name: 'turns',
  title: '## One tenant beside a flood of another',
  introduction: `One worker with ${SLOTS} slots, every job ${JOB_MS} ms long. Tenant B calls four times a second and hands in two durable
jobs a second, first alone, then while tenant A floods the service: with 100 calls that are always under way, and with durable
jobs as fast as they are taken. A wait is what a call took beside the job's own length. The goal: the p99 wait beside a flood is
at most twice the one alone plus one job.`,
  async measure({ kafka, dir, isQuick, print, signal }) {
    const how = isQuick ? { seconds: 5, jobs: 500 } : { seconds: 30, jobs: 5_000 }
    return [renderTurns(await measureTurns({ ...how, print, signal }, kafka, dir))]
  },
}
