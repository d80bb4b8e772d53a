import { type Clients, cancel, sleep, submit, waitForEnd } from './client.ts'
import { follow } from './follower.ts'
import { bodyOf, type PlannedJob, runAtOf } from './workload.ts'

/** Submitters at once. Each waits for its job's acceptance, so this bounds what an outage piles up. */
const SUBMITTERS = 32
/** Jobs watched at once; beyond that a submitter waits for one to end. */
const WATCHED_MAX = 2_500

/** How a run is loaded. */
export interface Load {
  /** In the order in which they are submitted. */
  readonly jobs: readonly PlannedJob[]
  /** Submissions are spread over this time; outages delay them. */
  readonly durationMs: number
  readonly onAccepted: () => void
}

/**
 * Submits all jobs of a run and starts whoever watches and cancels them.
 *
 * @returns once all are submitted; `watched` settles when the last watcher has seen its job's end
 */
export async function runLoad(clients: Clients, load: Load): Promise<{ watched: Promise<unknown> }> {
  const watching = new Set<Promise<unknown>>()
  const startedAt = clients.history.nowMs
  let next = 0
  const submitter = async () => {
    while (!clients.signal.aborted) {
      const number = next++
      const job = load.jobs[number]
      if (!job) return
      const dueAt = startedAt + (number / load.jobs.length) * load.durationMs
      await sleep(Math.max(0, dueAt - clients.history.nowMs), clients.signal)
      while (watching.size >= WATCHED_MAX) await Promise.race(watching)
      const jobId = await submitOnceOrTwice(clients, job, number)
      if (jobId === undefined) continue
      load.onAccepted()
      for (const watcher of watchersOf(clients, job, jobId, number)) {
        watching.add(watcher)
        void watcher.finally(() => watching.delete(watcher))
      }
    }
  }
  await Promise.all(Array.from({ length: SUBMITTERS }, submitter))
  return { watched: Promise.all(watching) }
}

async function submitOnceOrTwice(clients: Clients, job: PlannedJob, number: number): Promise<string | undefined> {
  const runAt = runAtOf(job, Date.now())
  const submission = {
    key: job.key,
    body: JSON.stringify(bodyOf(job, runAt)),
    expect: { ...job.expect, ...(runAt !== undefined && { run_at_wall_ms: runAt * 1_000 }) },
  }
  const twin = job.isDoubled ? submit(clients, submission, number + 1) : undefined
  const [jobId, twinId] = await Promise.all([submit(clients, submission, number), twin])
  return jobId ?? twinId
}

function watchersOf(clients: Clients, job: PlannedJob, jobId: string, number: number): Promise<void>[] {
  const watchers = [
    job.watch === 'follow' ? follow(clients, jobId, number, job.hangUps) : waitForEnd(clients, jobId, number),
  ]
  const { cancelAfterMs } = job
  if (cancelAfterMs !== undefined) {
    watchers.push(sleep(cancelAfterMs, clients.signal).then(() => cancel(clients, jobId, number + 1)))
  }
  return watchers
}
