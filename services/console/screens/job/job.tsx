import { useSignal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import { type AnyJob, fetchJson, isOperator, type Job, type OperatorJob, Pages } from '#services/console/api/client.ts'
import { dateTimeText } from '#services/console/api/clock.ts'
import {
  DetailHead,
  DetailState,
  Details,
  type Field,
  linked,
  modelLink,
  projectLink,
} from '#services/console/parts/details.tsx'
import { Confirm, CopyButton, ErrorText, Icon, report, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import { CountsBar, Status } from '#services/console/parts/states.tsx'
import { Elapsed } from '#services/console/parts/table.tsx'
import { BatchOverview } from '#services/console/screens/batches/batch.tsx'
import {
  batchCountsOf,
  endedAtOf,
  isBatch,
  isEnded,
  progressText,
  shownStatusOf,
} from '#services/console/screens/jobs/list.ts'
import { Cause } from '#services/console/screens/requests/request.tsx'
import { FollowedJob, textOfResult } from './follow.ts'
import { Input, Steps } from './input.tsx'
import { Facts, Timeline } from './timeline.tsx'

/** Refresh interval in ms of values that have no events: the queue position and the progress of child jobs. */
const REFRESH_INTERVAL_MS = 3_000

export function JobScreen({ id }: { readonly id: string }) {
  const followed = useMemo(() => new FollowedJob(id), [id])
  useEffect(() => {
    const abort = new AbortController()
    void followed.follow(abort.signal)
    return () => abort.abort()
  }, [followed])
  const shown: AnyJob | undefined = followed.job.value ?? followed.operatorJob.value
  const isOwn = followed.job.value !== undefined
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
      <DetailHead
        list="jobs"
        what="Job"
        id={id}
        title={shown && titleOf(shown)}
        state={
          shown && (
            <>
              <Status status={shownStatusOf(shown)} counts={batchCountsOf(shown)} />
              {shown.status === 'in_progress' && <Elapsed since={shown.started_at ?? shown.created_at} />}
            </>
          )
        }
      >
        {shown && <Actions job={shown} isOwn={isOwn} onDone={() => followed.refresh()} />}
      </DetailHead>
      <DetailState
        list="jobs"
        what="job"
        why="The jobs of other projects are visible to keys with the admin scope only. A job and its result are deleted some time after its end."
        error={followed.error.value}
        isLoaded={shown !== undefined}
        retry={() => void followed.refresh().catch(() => {})}
      />
      {shown && (
        <>
          <Failure job={shown} />
          <Facts followed={followed} />
          <div class="columns">
            <div>
              {isBatch(shown) ? (
                <>
                  <BatchOverview id={batchIdOf(id)} isOwn={isOwn} />
                  <Timeline followed={followed} />
                  <Children job={shown} isOwn={isOwn} />
                  {isOwn && (
                    <details class="internals">
                      <summary>Input, steps and result of the job that runs the batch</summary>
                      <Parts followed={followed} id={id} />
                    </details>
                  )}
                </>
              ) : (
                <>
                  <Timeline followed={followed} />
                  <Parts followed={followed} id={id} />
                  <Children job={shown} isOwn={isOwn} />
                </>
              )}
            </div>
            <Details fields={fieldsOf(shown, followed.operatorJob.value)} />
          </div>
        </>
      )}
    </section>
  )
}

/**
 * Model and endpoint, as in the title of a request. The title for the job of a batch has neither, because its model differs from that of
 * its requests.
 */
function titleOf(job: AnyJob): string {
  return isBatch(job) ? 'Job of a batch' : [job.model, job.endpoint.replace('/v1/', '')].join(', ')
}

function batchIdOf(jobId: string): string {
  return jobId.replace('job_', 'batch_')
}

function Parts({ followed, id }: { readonly followed: FollowedJob; readonly id: string }) {
  const job = followed.job.value
  const steps = job ? stepsOf(job) : 0
  return (
    <>
      <Output job={job} streamed={followed.output.value} />
      {job && <Input id={id} />}
      {steps > 0 && <Steps id={id} count={steps} />}
    </>
  )
}

function stepsOf(job: AnyJob): number {
  return 'steps' in job ? (job.steps?.length ?? 0) : 0
}

function Failure({ job: { id, error } }: { readonly job: AnyJob }) {
  return (
    error && (
      <Cause id={id} isLinked>
        <div class="note bad">
          <strong>{error.code ?? 'Failed'}</strong>
          <p>{error.message}</p>
        </div>
      </Cause>
    )
  )
}

/** Characters of the output that are shown at first: the end while it grows, otherwise the beginning. */
const OUTPUT_CHARS_MAX = 20_000

function Output({ job, streamed }: { readonly job: Job | undefined; readonly streamed: string }) {
  const isWhole = useSignal(false)
  if (!job) {
    return (
      <p class="dim card">
        This job belongs to another project. Operators see its status, but not its input or output.
      </p>
    )
  }
  const text = textOfResult(job.result) ?? streamed
  const hidden = isWhole.value ? 0 : Math.max(0, text.length - OUTPUT_CHARS_MAX)
  const raw = job.result == null ? '' : JSON.stringify(job.result, null, 2)
  const isRunning = job.status === 'in_progress'
  return (
    <div class="card">
      <div class="title">
        <h2>Output</h2>
        {text && <CopyButton text={text} label="Copy" />}
      </div>
      {hidden > 0 && (
        <p class="cut dim">
          {isRunning ? 'Last' : 'First'} {OUTPUT_CHARS_MAX.toLocaleString('en')} of {text.length.toLocaleString('en')}{' '}
          characters
          <button
            type="button"
            class="small"
            onClick={() => {
              isWhole.value = true
            }}
          >
            Show all
          </button>
        </p>
      )}
      {text ? (
        <pre class="output" aria-busy={isRunning}>
          {isRunning ? text.slice(hidden) : text.slice(0, text.length - hidden)}
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

interface ActionsProps {
  readonly job: AnyJob
  /** Whether the job belongs to the key's project. If false, then the admin API is used. */
  readonly isOwn: boolean
  readonly onDone: () => Promise<void>
}

function Actions({ job, isOwn, onDone }: ActionsProps) {
  const { isBusy, problem, run } = useAction()
  const url = `${isOwn ? '/v1/jobs' : '/v1/admin/jobs'}/${job.id}`
  const cancel = async () => {
    await fetchJson(`${url}/cancel`, { method: 'POST' })
    await onDone()
  }
  const redrive = () =>
    run(async () => {
      const { id } = await fetchJson<AnyJob>(`${url}/redrive`, { method: 'POST' })
      navigate(`${BASE}/jobs/${id}`)
      report('A new job runs the same request.', [`jobs/${job.id}`, 'Show the earlier job'])
    })
  // If a request failed because of its own content, then a redrive would fail too, so the button for a redrive is not highlighted.
  const isInvalid = job.error?.type === 'invalid_request_error'
  const canRedrive = ['failed', 'cancelled', 'expired'].includes(job.status)
  return (
    <div class="actions">
      {isOwn && isBatch(job) && (
        <a class="button" href={`${BASE}/batches/${batchIdOf(job.id)}`}>
          Open the batch
        </a>
      )}
      {canRedrive && (
        <button
          type="button"
          class={isInvalid ? undefined : 'primary'}
          onClick={() => void redrive()}
          disabled={isBusy.value}
        >
          <Icon name="again" /> Run again
        </button>
      )}
      <CopyButton text={curlOf(url, job)} label="Copy as curl" />
      {/* At the right edge, so that no other action takes its place when the job ends. */}
      {!isEnded(job.status) &&
        (job.status === 'cancelling' ? (
          <button type="button" disabled>
            Cancelling…
          </button>
        ) : (
          <Confirm
            isDestructive
            verb="Cancel"
            what={job.metadata.custom_id ?? 'this job'}
            id={job.id}
            keep={job.status === 'queued' ? 'Keep in the queue' : 'Keep running'}
            confirm="Cancel job"
            done="Cancel of the job requested."
            action={cancel}
          >
            <p>The work stops. This cannot be undone.</p>
          </Confirm>
        ))}
      <ErrorText text={problem.value} />
    </div>
  )
}

function curlOf(url: string, { status }: AnyJob): string {
  const what = isEnded(status) || url.startsWith('/v1/admin') ? '' : '/events'
  return `curl -N '${location.origin}${url}${what}' -H "Authorization: Bearer $SLUICE_API_KEY"`
}

function fieldsOf(job: AnyJob, operatorJob: OperatorJob | undefined): Field[] {
  return [
    ...detailsOf(job),
    ['Project', operatorJob && projectLink(operatorJob.project)],
    ...usageOf(job.usage),
    ['Parent', job.parent_id && linked(job.parent_id, `jobs/${job.parent_id}`)],
  ]
}

function detailsOf(job: AnyJob): Field[] {
  const ends: Field =
    endedAtOf(job) === null
      ? ['Deadline', dateTimeText(job.expires_at)]
      : ['Result expires', dateTimeText(job.result_expires_at)]
  return [
    // The job of a batch has its own model and pool. Both differ from those of its requests and would mislead a reader, so they are not
    // shown.
    ['Model', !isBatch(job) && modelLink(job.model)],
    ['Endpoint', job.endpoint],
    ['Pool', !isBatch(job) && job.queue.pool],
    ['Priority', job.priority],
    ['Created', dateTimeText(job.created_at)],
    ends,
    ...Object.entries(job.metadata).map(([name, value]): Field => [`metadata.${name}`, value]),
    ['Request ID', job.request_id && linked(job.request_id, `requests/${job.request_id}`)],
  ]
}

/** Returns the token counts of a job, each with a label made from the field name. The field names depend on the API format, the labels do not. */
function usageOf(usage: unknown): Field[] {
  if (typeof usage !== 'object' || usage === null) return []
  return Object.entries(usage).flatMap(([name, value]): Field[] => {
    return typeof value === 'number' ? [[labelOf(name), value.toLocaleString('en')]] : []
  })
}

function labelOf(field: string): string {
  const name = field.replace('prompt_', 'input_').replace('completion_', 'output_')
  return `${name[0]?.toUpperCase()}${name.slice(1).replaceAll('_', ' ')}`
}

const CHILDREN_REFRESH_MS = 3_000
const DEPTH_MAX = 4

interface ChildrenProps {
  readonly job: AnyJob
  readonly isOwn: boolean
}

function Children({ job, isOwn }: ChildrenProps) {
  const counts = job.child_counts
  if (!counts) return null
  if (isBatch(job)) {
    // The card of the batch already shows the progress and a link to the requests, so this card shows only the tree of jobs.
    return (
      <section class="card" aria-label="Child jobs">
        <h2>Child jobs</h2>
        <Branch job={job} isOwn={isOwn} depth={1} />
      </section>
    )
  }
  return (
    <section class="card" aria-label="Child jobs">
      <div class="title">
        <h2>Child jobs</h2>
        <p class="dim" aria-live="polite">
          {progressText(job)}
          {counts.failed > 0 && <span class="bad">, {counts.failed.toLocaleString('en')} not completed</span>}
        </p>
      </div>
      <CountsBar label="Finished child jobs" counts={counts} />
      <Branch job={job} isOwn={isOwn} depth={1} />
      <p>
        <a href={`${BASE}/jobs?group=${job.id}${isOwn && isOperator.value ? '&of=mine' : ''}`}>
          Show all in the jobs table
        </a>
      </p>
    </section>
  )
}

function Branch({ job, isOwn, depth }: ChildrenProps & { readonly depth: number }) {
  const children = useMemo(() => {
    // Child jobs of other projects are visible in the admin API only.
    return new Pages<AnyJob>(isOwn ? '/v1/jobs' : '/v1/admin/jobs', { parent_id: job.id })
  }, [job.id, isOwn])
  const isFinished = isEnded(job.status)
  usePoll(
    CHILDREN_REFRESH_MS,
    async (signal) => {
      if (!isFinished || !children.isLoaded.peek()) await children.refresh(signal)
    },
    [children, isFinished],
  )
  // The jobs are sorted by creation time, because ids of child jobs do not increase with time.
  const jobs = children.items.value.toSorted((a, b) => a.created_at - b.created_at || (a.id < b.id ? -1 : 1))
  return (
    <>
      <ErrorText text={children.problem.value} />
      {children.isLoaded.value && jobs.length === 0 && <p class="dim">The child jobs have expired.</p>}
      <ul class="tree">
        {jobs.map((child) => (
          <Child key={child.id} job={child} isOwn={isOwn} depth={depth} />
        ))}
      </ul>
      {children.hasMore.value && (
        <p>
          <button type="button" class="small" onClick={() => void children.more()}>
            Show more
          </button>
        </p>
      )}
    </>
  )
}

function Child({ job, isOwn, depth }: ChildrenProps & { readonly depth: number }) {
  const isOpen = useSignal(false)
  const { id, model, endpoint, metadata } = job
  const canOpen = job.child_counts !== undefined && depth < DEPTH_MAX
  const { custom_id } = metadata
  const what = custom_id ? '' : [endpoint.replace('/v1/', ''), model].join(', ')
  return (
    <li>
      <div class="child">
        {canOpen && (
          <button
            type="button"
            class="small twist"
            aria-expanded={isOpen.value}
            aria-label={`Child jobs of ${id}`}
            onClick={() => {
              isOpen.value = !isOpen.value
            }}
          >
            {isOpen.value ? '−' : '+'}
          </button>
        )}
        <Status status={shownStatusOf(job)} counts={batchCountsOf(job)} />
        <a class="child-name" href={`${BASE}/jobs/${id}`} title={id}>
          {custom_id || <code>{id}</code>}
        </a>
        <span class="dim">{[what, progressText(job)].filter(Boolean).join(' · ')}</span>
      </div>
      {isOpen.value && <Branch job={job} isOwn={isOwn} depth={depth + 1} />}
    </li>
  )
}
