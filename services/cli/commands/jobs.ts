import { exitCodeOf, type JobView, queueText } from '#services/cli/client/job.ts'
import type { JobFilter } from '#services/cli/client/jobs-api.ts'
import { type Command, noArguments, type Values } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { adminFilterOf, JOB_SELECTOR_HELP, JOB_SELECTOR_OPTIONS } from '#services/cli/operator/job-selectors.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { coloured, tableOf } from '#services/cli/text/output.ts'
import { timeOf } from '#services/cli/text/time.ts'
import { metadataOf } from './submit.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000

export const jobs: Command = {
  summary: 'List jobs, newest first',
  help: `Usage: sluice jobs [options]

Lists the jobs of your key's project, newest first. On a terminal, the output is a table. With --json, or
when output is not a TTY, each job is one line of JSON.

Options:
  --status LIST    only jobs in these statuses, comma-separated: queued, in_progress, cancelling, completed, failed, cancelled, expired
  --endpoint PATH  only jobs of this endpoint
  --group ID       only child jobs of this batch or composed job
  --metadata KEY=VALUE
                   only jobs with this metadata; repeatable
  --since TIME     only jobs created since 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 2h
  --limit N        maximum number of jobs (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})

${JOB_SELECTOR_HELP}

Examples:
  sluice jobs --status queued,in_progress
  sluice jobs --all-projects --status queued --model smollm2-135m-instruct
  sluice jobs --status failed --since 1d --json | jq -r '.id + " " + .error.message'`,
  options: {
    status: { type: 'string' },
    endpoint: { type: 'string' },
    group: { type: 'string' },
    metadata: { type: 'string', multiple: true },
    since: { type: 'string' },
    limit: { type: 'string' },
    ...JOB_SELECTOR_OPTIONS,
  },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const adminFilter = adminFilterOf(values)
    const limit = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
    const found: JobView[] = []
    for await (const job of adminFilter ? api.admin.list(adminFilter, limit) : api.list(ownFilterOf(values), limit)) {
      if (out.isHumanReadable) found.push(job)
      else await out.json(job)
    }
    if (out.isHumanReadable) await out.write(found.length > 0 ? jobTable(found, out.columns) : 'No jobs.\n')
    return EXIT.ok
  },
}

function ownFilterOf(values: Values): JobFilter {
  const since = values.text('since')
  return {
    statuses: values.parts('status'),
    endpoint: values.text('endpoint'),
    group: values.text('group'),
    metadata: metadataOf(values.list('metadata')),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}

const COLOURS: Readonly<Record<string, 'green' | 'red' | 'yellow'>> = {
  completed: 'green',
  failed: 'red',
  expired: 'red',
  cancelled: 'yellow',
  cancelling: 'yellow',
}

/** A table of jobs. The status comes last and in colour. */
export function jobTable(found: readonly JobView[], columnsMax: number): string {
  const nowMs = Date.now()
  const hasProjects = found.some(({ project }) => project)
  const rows = found.map((job) => {
    const { percent } = job.progress ?? {}
    const progress = typeof percent === 'number' && exitCodeOf(job) === undefined ? ` ${Math.round(percent)} %` : ''
    const age = ageOf(job.created_at, nowMs)
    const project = hasProjects ? [job.project ?? ''] : []
    return [
      ...[job.id, ...project, age, job.endpoint ?? '', job.model ?? '', String(job.attempt ?? '')],
      `${job.status}${progress}${queueText(job)}`,
    ]
  })
  const head = ['job', ...(hasProjects ? ['project'] : []), 'age', 'endpoint', 'model', 'attempt', 'status']
  const table = { head, rows, spare: ['attempt', 'endpoint'] }
  const [top, ...lines] = tableOf(table, columnsMax).split('\n')
  const tinted = lines.map((line, i) => {
    const status = found[i]?.status ?? ''
    const colour = COLOURS[status]
    return colour ? line.replace(/\S+$/, (word) => (word === status ? coloured(colour, word) : word)) : line
  })
  return [top, ...tinted].join('\n')
}
