import type { ComponentChildren } from 'preact'
import type { AnyJob, OperatorJob } from '#services/console/api/client.ts'
import { ageText, clockText, costText, dateTimeText, offsetText } from '#services/console/api/clock.ts'
import { workerLink } from '#services/console/parts/details.tsx'
import { Elapsed } from '#services/console/parts/table.tsx'
import { dueText, endedAtOf, isEnded } from '#services/console/screens/jobs/list.ts'
import { durationText } from '#shared/lib/duration.ts'
import { type FollowedJob, HANDED_BACK, type Line } from './follow.ts'

type Fact = readonly [name: string, value: ComponentChildren, below?: ComponentChildren]

/** The key facts of a job in one row: attempts, worker with its last heartbeat, times, progress and cost. */
export function Facts({ followed }: { readonly followed: FollowedJob }) {
  const job = followed.job.value ?? followed.operatorJob.value
  const facts = job ? factsOf(job, followed).filter(([, value]) => Boolean(value)) : []
  if (facts.length === 0) return null
  return (
    <dl class="card totals facts" aria-label="Key facts">
      {facts.map(([name, value, below]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
          {below && <dd class="dim below">{below}</dd>}
        </div>
      ))}
    </dl>
  )
}

function factsOf(job: AnyJob, { operatorJob, worker: process, lines }: FollowedJob): Fact[] {
  const { attempt, max_attempts, child_counts, created_at, started_at } = job
  const { worker, tries = 0, crashes = 0 } = operatorJob.value ?? {}
  const ended = endedAtOf(job)
  const progress = lines.value.findLast(({ type }) => type === 'job.progress')?.note
  const failures = [
    tries > 0 && `${tries} failed`,
    crashes > 0 && `${crashes} worker ${crashes === 1 ? 'crash' : 'crashes'}`,
  ]
  return [
    // A composed job begins another attempt after each wait for its child jobs. The number of attempts therefore does not count failures and is
    // not shown.
    ['Attempt', !child_counts && attempt > 0 && `${attempt} of ${max_attempts}`, failures.filter(Boolean).join(', ')],
    ['Queue time', started_at !== null && durationText(started_at - created_at)],
    ['Duration', started_at !== null && ended !== null && durationText(ended - started_at)],
    ['Progress', ended === null && progress],
    ['Tokens', tokensOf(job.usage)],
    ['Cost', 'cost_usd' in job && job.cost_usd !== undefined && costText(job.cost_usd)],
    ['Worker', worker && workerLink(worker), process.value?.host && `on ${process.value.host}`],
  ]
}

/** The tokens of a job, such as `12 → 34`. The names of the fields depend on the API of the job. */
function tokensOf(usage: unknown): string {
  const { prompt_tokens, input_tokens, completion_tokens, output_tokens } = (usage ?? {}) as Record<string, unknown>
  const counts = [prompt_tokens ?? input_tokens, completion_tokens ?? output_tokens]
  return counts
    .filter((count) => typeof count === 'number')
    .map((count) => count.toLocaleString('en'))
    .join(' → ')
}

/** The events of a job in order. Until the job has ended, its present state follows. */
export function Timeline({ followed }: { readonly followed: FollowedJob }) {
  const job = followed.job.value ?? followed.operatorJob.value
  if (!job) return null
  const lines = linesOf(followed)
  return (
    <section class="card" aria-label="Timeline">
      <h2>Timeline</h2>
      <ol class="history">
        {lines.map((line, nth) => (
          <Event key={`${line.type}-${nth}`} line={line} from={job.created_at} />
        ))}
        {!isEnded(job.status) && <Now job={job} followed={followed} since={startOf(job, lines)} />}
      </ol>
    </section>
  )
}

function Event({ line, from }: { readonly line: Line; readonly from: number }) {
  const { type, at, code, note, notes, times } = line
  return (
    <li class={type.replaceAll('.', '-')}>
      <span class="what">{titleOf(line)}</span>
      {times > 1 && <span class="dim">{`×\u00a0${times.toLocaleString('en')}`}</span>}
      {notes.length > 1 ? (
        <details class="note-text">
          <summary>{note}</summary>
          <p>{notes.slice(0, -1).join('\n')}</p>
        </details>
      ) : (
        (note || code) && (
          <span class="note-text">
            {note} {code && <code>{code}</code>}
          </span>
        )
      )}
      <span class="when dim" title={dateTimeText(at)}>
        <span class="clock">{clockText(at, true)}</span> {offsetText(at - from)}
      </span>
    </li>
  )
}

function titleOf({ type, attempt, code }: Line): string {
  if (type === 'job.started') return attempt === undefined ? 'Started' : `Attempt ${attempt} started`
  if (type === 'job.retrying') {
    return code === HANDED_BACK ? `Attempt ${attempt} requeued` : `Attempt ${attempt} failed`
  }
  return type.replace('job.', '').replace('.delta', '').replace('cancelling', 'cancel requested')
}

interface NowProps {
  readonly job: AnyJob
  readonly followed: FollowedJob
  readonly since: number
}

/** Start of the present state of a job: the start of the last attempt, or the last return to the queue. */
function startOf({ created_at }: AnyJob, lines: readonly Line[]): number {
  return lines.findLast(({ type }) => ['job.started', 'job.retrying', 'job.queued'].includes(type))?.at ?? created_at
}

/** The last line of the timeline of a job that has not ended: what the job does or waits for. */
function Now({ job, followed, since }: NowProps) {
  const { status, attempt, run_at, queue } = job
  const worker = followed.worker.value
  if (status === 'in_progress' || status === 'cancelling') {
    return (
      <li class={`now ${status}`}>
        <span class="what">{status === 'cancelling' ? 'Cancelling' : 'Running'}</span>
        <Elapsed since={since} />
        <span class="note-text">{worker && `Last heartbeat of the worker ${ageText(worker.last_seen_at)}.`}</span>
      </li>
    )
  }
  if (run_at !== null) {
    const when = `${dueText(job)} (${dateTimeText(run_at)})`
    return (
      <li class="now">
        <span class="what">{attempt === 0 ? 'Scheduled' : 'Retrying'}</span>
        <span class="note-text">{attempt === 0 ? `Starts ${when}.` : `Attempt ${attempt + 1} starts ${when}.`}</span>
      </li>
    )
  }
  const place = queue.position === null ? '' : positionText(queue.position)
  const reason = followed.operatorJob.value?.waits?.message
  return (
    <li class="now">
      <span class="what">In the queue</span>
      <Elapsed since={since} />
      <span class="note-text">
        {[reason, place].filter(Boolean).join(' ') || 'A worker is about to start this job.'}
      </span>
    </li>
  )
}

function positionText(position: number): string {
  if (position === 0) return 'This job is next in the queue.'
  return position === 1
    ? '1 job is ahead in the queue.'
    : `${position.toLocaleString('en')} jobs are ahead in the queue.`
}

/**
 * Returns the lines of the timeline. The worker of the current attempt is added to its line. The events of a job of another project cannot be read,
 * because they would reveal its output, so its timestamps are shown instead.
 */
function linesOf({ job, operatorJob, lines }: FollowedJob): readonly Line[] {
  const known = job.value || !operatorJob.value ? lines.value : timesOf(operatorJob.value)
  const worker = operatorJob.value?.worker
  const last = known.findLastIndex(({ type }) => type === 'job.started')
  return known.map((line, nth) => (nth === last && worker ? { ...line, note: `on ${worker}` } : line))
}

function timesOf({ error, ...job }: OperatorJob): readonly Line[] {
  const known: [type: string, at: number | null, note: string][] = [
    ['job.queued', job.created_at, ''],
    ['job.started', job.started_at, ''],
    ['job.completed', job.completed_at, ''],
    ['job.failed', job.failed_at, error?.message ?? ''],
    ['job.cancelled', job.cancelled_at, ''],
    ['job.expired', job.expired_at, ''],
  ]
  return known.flatMap(([type, at, note]) => (at === null ? [] : [{ type, at, note, notes: [note], times: 1 }]))
}
