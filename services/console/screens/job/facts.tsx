import type { AnyJob, OperatorJob } from '#services/console/api/types.ts'
import { clock, lasted } from '#services/console/parts/time.ts'
import { BASE } from '#services/console/place.ts'

export function Facts({ job, operated }: { readonly job: AnyJob; readonly operated: OperatorJob | undefined }) {
  const facts = [...factsOf(job), ...(operated ? operatorFactsOf(operated) : []), ...usageOf(job.usage)]
  return (
    <aside class="card facts" aria-label="Details">
      <h2>Details</h2>
      <dl>
        {facts.map(([name, value]) => (
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

function factsOf(job: AnyJob): [string, string][] {
  const ended = job.completed_at ?? job.failed_at ?? job.cancelled_at ?? job.expired_at
  const started = job.started_at
  const facts: [string, string][] = [
    ['Model', job.model],
    ['Endpoint', job.endpoint],
    ['Pool', job.queue.pool],
    ['Priority', job.priority],
    ['Attempt', `${job.attempt} of ${job.max_attempts}`],
    ['Created', clock(job.created_at)],
  ]
  if (started !== null) facts.push(['Queue time', lasted(started - job.created_at)])
  if (started !== null && ended !== null) facts.push(['Run time', lasted(ended - started)])
  if (ended === null) facts.push(['Deadline', clock(job.expires_at)])
  else facts.push(['Result expires', clock(job.result_expires_at)])
  for (const [name, value] of Object.entries(job.metadata)) facts.push([`metadata.${name}`, value])
  if ('cost_usd' in job && job.cost_usd !== undefined) facts.push(['Cost', costWords(job.cost_usd)])
  if (job.request_id) facts.push(['Request ID', job.request_id])
  return facts
}

/** Three significant digits below a dollar, because a call can cost fractions of a cent. */
function costWords(usd: number): string {
  return `$${usd >= 1 ? usd.toFixed(2) : Number(usd.toPrecision(3))}`
}

function operatorFactsOf({ project, worker, tries, crashes }: OperatorJob): [string, string][] {
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
