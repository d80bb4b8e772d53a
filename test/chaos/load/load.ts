import { type Clients, cancel, sleep, submit, waitForEnd } from './client.ts'
import { follow } from './follower.ts'
import { bodyOf, type PlannedJob, runAtOf } from './workload.ts'

/** Maximum concurrent submissions. Each submitter waits until its job is accepted, so that the backlog stays bounded during an outage. */
const SUBMITTERS = 32
/** Maximum number of jobs whose end clients wait for. If it is reached, then submitters pause until one of these jobs ends. */
const WATCHED_MAX = 2_500

export interface Load {
  /** In order of submission. */
  readonly jobs: readonly PlannedJob[]
  /** Time over which the submissions are spread. An outage may delay them further. */
  readonly durationMs: number
  readonly onAccepted: () => void
}

/**
 * Submits all jobs of a run. Each job has one client, which follows or polls the job and may cancel the job.
 *
 * @returns When all jobs are submitted. The promise `watched` settles when every client has received the end of its job.
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
