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

/** How often its place in the line and its children are looked at. */
const LOOK_MS = 3_000

/** One job: where it is and why, what happened to it, what it says, and what can be done. */
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
    LOOK_MS,
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

/** Why it waits, or why it failed. */
function Why({ followed }: { readonly followed: FollowedJob }) {
  const job = followed.job.value ?? followed.operated.value
  const waits = followed.operated.value?.waits
  if (job?.error) {
    return (
      <div class="note bad">
        <strong>{job.error.code ?? 'It failed'}</strong>
        <p>{job.error.message}</p>
      </div>
    )
  }
  if (job?.status !== 'queued') return null
  const { position } = job.queue
  const place = position === null ? '' : placeWords(position)
  return (
    <div class="note">
      <strong>It waits</strong>
      <p>{[waits?.message, place].filter(Boolean).join(' ') || 'It is about to be taken by a worker.'}</p>
    </div>
  )
}

function placeWords(position: number): string {
  if (position === 0) return 'It is the next one.'
  return position === 1 ? '1 job comes before it.' : `${position.toLocaleString()} jobs come before it.`
}

function Output({ job, said }: { readonly job: Job | undefined; readonly said: string }) {
  if (!job) {
    return <p class="dim card">It belongs to another project: operators see where a job is, not what it says.</p>
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
          <summary>The whole answer</summary>
          <pre class="output">{raw}</pre>
        </details>
      )}
    </div>
  )
}

function emptyWords(status: string, hasResult: boolean): string {
  if (status === 'in_progress') return 'It runs. What it says appears here.'
  if (hasResult) return 'It has no text: the whole answer is below.'
  return status === 'queued' ? 'There is none yet.' : 'There is none.'
}
