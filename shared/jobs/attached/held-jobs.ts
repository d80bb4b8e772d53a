import type { PoolName } from '#schemas/job.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import type { AttachedJob } from './attached-job.ts'

/** The jobs that one ingress holds, by their ids. */
export class HeldJobs extends Map<string, AttachedJob> {
  /** Those of a pool that wait or run. */
  count(pool: PoolName, state: 'queued' | 'running'): number {
    let count = 0
    for (const job of this.values()) if (job.envelope.pool === pool && job.state === state) count++
    return count
  }

  /** Those that a worker runs. @param boot Its boot id */
  runBy(boot: string): AttachedJob[] {
    return [...this.values()].filter((job) => job.worker === boot)
  }

  /**
   * Those of a silent worker that run a second time at no cost: they have seen no output, and lose less work than certainty
   * takes. Once a job: workers that are often slow must not use up its attempts.
   *
   * @param workerLostMs Silence after which the worker is surely dead.
   */
  cheapToRepeat({ boot, lastSeenMs }: Peer, workerLostMs: number): AttachedJob[] {
    const isCheap = ({ hasOutput, crashes, startedAtMs = 0 }: AttachedJob) =>
      !hasOutput && crashes === 0 && startedAtMs > lastSeenMs - workerLostMs
    return this.runBy(boot).filter(isCheap)
  }
}
