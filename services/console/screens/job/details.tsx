import type { AnyJob, OperatorJob } from '#services/console/api/types.ts'
import { dateTimeText, durationText } from '#services/console/parts/time.ts'
import { BASE } from '#services/console/router.ts'

export function Details({ job, operatorJob }: { readonly job: AnyJob; readonly operatorJob: OperatorJob | undefined }) {
  const details = [...detailsOf(job), ...(operatorJob ? operatorDetailsOf(operatorJob) : []), ...usageOf(job.usage)]
  return (
    <aside class="card details" aria-label="Details">
      <h2>Details</h2>
      <dl>
        {details.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {job.parent_id && (
          <div>
            <dt>Parent</dt>
            <dd>
              <a href={`${BASE}/jobs/${job.parent_id}`}>{job.parent_id}</a>
            </dd>
          </div>
        )}
      </dl>
    </aside>
  )
}

function detailsOf(job: AnyJob): [string, string][] {
  const ended = job.completed_at ?? job.failed_at ?? job.cancelled_at ?? job.expired_at
  const started = job.started_at
  const details: [string, string][] = [
    ['Model', job.model],
    ['Endpoint', job.endpoint],
    ['Pool', job.queue.pool],
    ['Priority', job.priority],
    ['Attempt', `${job.attempt} of ${job.max_attempts}`],
    ['Created', dateTimeText(job.created_at)],
  ]
  if (started !== null) details.push(['Queue time', durationText(started - job.created_at)])
  if (started !== null && ended !== null) details.push(['Run time', durationText(ended - started)])
  if (ended === null) details.push(['Deadline', dateTimeText(job.expires_at)])
  else details.push(['Result expires', dateTimeText(job.result_expires_at)])
  for (const [name, value] of Object.entries(job.metadata)) details.push([`metadata.${name}`, value])
  if ('cost_usd' in job && job.cost_usd !== undefined) details.push(['Cost', costText(job.cost_usd)])
  if (job.request_id) details.push(['Request ID', job.request_id])
  return details
}

/** Three significant digits below a dollar, because a call can cost fractions of a cent. */
function costText(usd: number): string {
  return `$${usd >= 1 ? usd.toFixed(2) : Number(usd.toPrecision(3))}`
}

function operatorDetailsOf({ project, worker, tries, crashes }: OperatorJob): [string, string][] {
  return [
    ['Project', project],
    ['Worker', worker ?? '–'],
    ['Failures', `${tries} failed attempts, ${crashes} worker crashes`],
  ]
}

/** Token counts. Their field names depend on the API format of the job. */
function usageOf(usage: unknown): [string, string][] {
  if (typeof usage !== 'object' || usage === null) return []
  return Object.entries(usage).flatMap(([name, value]): [string, string][] => {
    return typeof value === 'number' ? [[labelOf(name), value.toLocaleString()]] : []
  })
}

/** `prompt_tokens` → `Prompt tokens`. */
function labelOf(name: string): string {
  return `${name[0]?.toUpperCase()}${name.slice(1).replaceAll('_', ' ')}`
}
