import type { OperatorJob } from '#services/console/api/types.ts'
import { dateTimeText, offsetText } from '#services/console/parts/time.ts'
import type { FollowedJob, Line } from './follow.ts'

/** The events of a job or, for a job of another project, lines made from its timestamps. Events would reveal its output. */
export function linesOf({ job, operatorJob, lines }: FollowedJob): readonly Line[] {
  return job.value || !operatorJob.value ? lines.value : timesOf(operatorJob.value)
}

function timesOf({ attempt, worker, error, ...job }: OperatorJob): readonly Line[] {
  const started = [attempt > 0 && `attempt ${attempt}`, worker && `on ${worker}`].filter(Boolean).join(' ')
  const known: [type: string, at: number | null, note: string][] = [
    ['job.queued', job.created_at, ''],
    ['job.started', job.started_at, started],
    ['job.completed', job.completed_at, ''],
    ['job.failed', job.failed_at, error?.message ?? ''],
    ['job.cancelled', job.cancelled_at, ''],
    ['job.expired', job.expired_at, ''],
  ]
  return known.flatMap(([type, at, note]) => (at === null ? [] : [{ type, at, note, notes: [note], times: 1 }]))
}

interface HistoryProps {
  readonly lines: readonly Line[]
  readonly from: number
}

export function History({ lines, from }: HistoryProps) {
  return (
    <div class="card">
      <h2>Timeline</h2>
      <ol class="history">
        {lines.map(({ type, at, note, notes, times }, nth) => (
          <li key={`${type}-${nth}`} class={type.replaceAll('.', '-')}>
            <span class="what">{type.replace('job.', '').replace('.delta', '')}</span>
            {times > 1 && <span class="dim">{`×\u00a0${times}`}</span>}
            {notes.length > 1 ? (
              <details class="note-text">
                <summary>{note}</summary>
                {notes.slice(0, -1).map((one, earlier) => (
                  <p key={`${earlier}-${one}`} class="dim">
                    {one}
                  </p>
                ))}
              </details>
            ) : (
              <span class="note-text">{note}</span>
            )}
            <span class="when dim" title={dateTimeText(at)}>
              {offsetText(at - from)}
            </span>
          </li>
        ))}
      </ol>
      {lines.length === 0 && <p class="dim">No events yet.</p>}
    </div>
  )
}
