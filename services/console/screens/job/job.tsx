import { useEffect, useMemo } from 'preact/hooks'
import { usePoll } from '#services/console/api/poll.ts'
import type { AnyJob, Job } from '#services/console/api/types.ts'
import { Copy } from '#services/console/parts/copy.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { BASE } from '#services/console/place.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'
import { Actions } from './actions.tsx'
import { Input, Steps } from './asked.tsx'
import { Facts } from './facts.tsx'
import { Family } from './family.tsx'
import { FollowedJob } from './follow.ts'
import { History, linesOf } from './history.tsx'
import { textOfResult } from './output.ts'

/** Interval for the queue position and the progress of child jobs, which have no events. */
const REFRESH_MS = 3_000

export function JobScreen({ id }: { readonly id: string }) {
  const followed = useMemo(() => new FollowedJob(id), [id])
  useEffect(() => {
    const abort = new AbortController()
    void followed.follow(abort.signal)
    return () => abort.abort()
  }, [followed])
  const shown: AnyJob | undefined = followed.job.value ?? followed.operated.value
  const isOver = isEnded(shown?.status ?? '')
  usePoll(
    REFRESH_MS,
    async (signal) => {
      if (followed.isKnown && !isOver) await followed.look(signal)
    },
    [followed, isOver],
  )
  return (
    <section class="job">
      <p>
        <a class="up" href={`${BASE}/jobs`}>
          <Icon name="back" /> Jobs
        </a>
      </p>
      <div class="title">
        <h1>
          <code>{id}</code>
        </h1>
        {shown && <Status of={shown.status} />}
      </div>
      {followed.problem.value && (
        <p class="refusal" role="alert">
          {followed.problem.value}
        </p>
      )}
      {shown && (
        <>
          <Actions job={shown} isOwn={followed.job.value !== undefined} onDone={() => followed.look()} />
          <Why followed={followed} />
          <div class="columns">
            <div>
              <Output job={followed.job.value} said={followed.output.value} />
              {followed.job.value && <Input id={id} />}
              <Family job={shown} isOwn={followed.job.value !== undefined} />
              {stepsOf(shown) > 0 && <Steps id={id} count={stepsOf(shown)} />}
              <History lines={linesOf(followed)} from={shown.created_at} />
            </div>
            <Facts job={shown} operated={followed.operated.value} />
          </div>
        </>
      )}
    </section>
  )
}

function stepsOf(job: AnyJob): number {
  return 'steps' in job ? (job.steps?.length ?? 0) : 0
}

/** Why a job is queued, or why it failed. */
function Why({ followed }: { readonly followed: FollowedJob }) {
  const job = followed.job.value ?? followed.operated.value
  const waits = followed.operated.value?.waits
  if (job?.error) {
    return (
      <div class="note bad">
        <strong>{job.error.code ?? 'Failed'}</strong>
        <p>{job.error.message}</p>
      </div>
    )
  }
  if (job?.status !== 'queued') return null
  const { position } = job.queue
  const place = position === null ? '' : placeWords(position)
  return (
    <div class="note">
      <strong>Queued</strong>
      <p>{[waits?.message, place].filter(Boolean).join(' ') || 'A worker is about to start this job.'}</p>
    </div>
  )
}

function placeWords(position: number): string {
  if (position === 0) return 'This job is next in the queue.'
  return position === 1 ? '1 job is ahead in the queue.' : `${position.toLocaleString()} jobs are ahead in the queue.`
}

function Output({ job, said }: { readonly job: Job | undefined; readonly said: string }) {
  if (!job) {
    return (
      <p class="dim card">
        This job belongs to another project. Operators see its status, but not its input or output.
      </p>
    )
  }
  const text = textOfResult(job.result) ?? said
  const raw = job.result == null ? '' : JSON.stringify(job.result, null, 2)
  const isRunning = job.status === 'in_progress'
  return (
    <div class="card">
      <div class="title">
        <h2>Output</h2>
        {text && <Copy text={text} label="Copy" />}
      </div>
      {text ? (
        <pre class="output" aria-live={isRunning ? 'polite' : undefined}>
          {text}
          {isRunning && <span class="caret" />}
        </pre>
      ) : (
        <p class="dim">{emptyWords(job.status, raw !== '')}</p>
      )}
      {raw && (
        <details>
          <summary>Full response</summary>
          <pre class="output">{raw}</pre>
        </details>
      )}
    </div>
  )
}

function emptyWords(status: string, hasResult: boolean): string {
  if (status === 'in_progress') return 'Running. Output will appear here.'
  if (hasResult) return 'The response has no text. See the full response below.'
  return status === 'queued' ? 'No output yet.' : 'No output.'
}
