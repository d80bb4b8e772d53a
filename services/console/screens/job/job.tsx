import { useEffect, useMemo } from 'preact/hooks'
import { usePoll } from '#services/console/api/poll.ts'
import type { AnyJob, Job } from '#services/console/api/types.ts'
import { CopyButton } from '#services/console/parts/copy-button.tsx'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { BASE } from '#services/console/router.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'
import { Actions } from './actions.tsx'
import { Children } from './children.tsx'
import { Details } from './details.tsx'
import { FollowedJob } from './follow.ts'
import { History, linesOf } from './history.tsx'
import { Input, Steps } from './input.tsx'
import { textOfResult } from './output.ts'

/** Interval for the queue position and the progress of child jobs, which have no events. */
const REFRESH_INTERVAL_MS = 3_000

export function JobScreen({ id }: { readonly id: string }) {
  const followed = useMemo(() => new FollowedJob(id), [id])
  useEffect(() => {
    const abort = new AbortController()
    void followed.follow(abort.signal)
    return () => abort.abort()
  }, [followed])
  const shown: AnyJob | undefined = followed.job.value ?? followed.operatorJob.value
  const isFinished = isEnded(shown?.status ?? '')
  usePoll(
    REFRESH_INTERVAL_MS,
    async (signal) => {
      if (followed.isKnown && !isFinished) await followed.refresh(signal)
    },
    [followed, isFinished],
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
        {shown && <Status status={shown.status} />}
      </div>
      <ErrorText text={followed.problem.value} />
      {shown && (
        <>
          <Actions job={shown} isOwn={followed.job.value !== undefined} onDone={() => followed.refresh()} />
          <Reason followed={followed} />
          <div class="columns">
            <div>
              <Output job={followed.job.value} streamed={followed.output.value} />
              {followed.job.value && <Input id={id} />}
              <Children job={shown} isOwn={followed.job.value !== undefined} />
              {stepsOf(shown) > 0 && <Steps id={id} count={stepsOf(shown)} />}
              <History lines={linesOf(followed)} from={shown.created_at} />
            </div>
            <Details job={shown} operatorJob={followed.operatorJob.value} />
          </div>
        </>
      )}
    </section>
  )
}

function stepsOf(job: AnyJob): number {
  return 'steps' in job ? (job.steps?.length ?? 0) : 0
}

function Reason({ followed }: { readonly followed: FollowedJob }) {
  const job = followed.job.value ?? followed.operatorJob.value
  const waits = followed.operatorJob.value?.waits
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
  const place = position === null ? '' : positionText(position)
  return (
    <div class="note">
      <strong>Queued</strong>
      <p>{[waits?.message, place].filter(Boolean).join(' ') || 'A worker is about to start this job.'}</p>
    </div>
  )
}

function positionText(position: number): string {
  if (position === 0) return 'This job is next in the queue.'
  return position === 1 ? '1 job is ahead in the queue.' : `${position.toLocaleString()} jobs are ahead in the queue.`
}

function Output({ job, streamed }: { readonly job: Job | undefined; readonly streamed: string }) {
  if (!job) {
    return (
      <p class="dim card">
        This job belongs to another project. Operators see its status, but not its input or output.
      </p>
    )
  }
  const text = textOfResult(job.result) ?? streamed
  const raw = job.result == null ? '' : JSON.stringify(job.result, null, 2)
  const isRunning = job.status === 'in_progress'
  return (
    <div class="card">
      <div class="title">
        <h2>Output</h2>
        {text && <CopyButton text={text} label="Copy" />}
      </div>
      {text ? (
        <pre class="output" aria-live={isRunning ? 'polite' : undefined}>
          {text}
          {isRunning && <span class="caret" />}
        </pre>
      ) : (
        <p class="dim">{emptyText(job.status, raw !== '')}</p>
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

function emptyText(status: string, hasResult: boolean): string {
  if (status === 'in_progress') return 'Running. Output will appear here.'
  if (hasResult) return 'The response has no text. See the full response below.'
  return status === 'queued' ? 'No output yet.' : 'No output.'
}
