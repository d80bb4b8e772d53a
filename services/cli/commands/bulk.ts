import type { AdminFilter, BulkResult } from '#services/cli/client/admin-api.ts'
import { CommandError, EXIT, type ExitCode, plain, tableOf, timeOf, usageError } from '#services/cli/text/output.ts'
import type { Invocation, Values } from './command.ts'

/** Maximum jobs per bulk action, as enforced by the service. */
export const BULK_MAX = 1_000

const SUCCESS_LINES = {
  cancel: ({ id, status }: BulkResult) => `${id} ${plain(status)}`,
  redrive: ({ id, new_id }: BulkResult) => `${id} runs again as ${plain(new_id ?? '')}`,
}

/**
 * Cancels or redrives jobs of other projects in one request.
 *
 * @throws CommandError if some jobs were rejected
 */
export async function runBulkAction(
  { api, out, values }: Invocation,
  action: 'cancel' | 'redrive',
  filter: AdminFilter,
  max: number,
): Promise<ExitCode> {
  const isDryRun = values.has('dry-run')
  const { data, has_more } = await api.admin.bulk(action, filter, max, isDryRun)
  if (has_more)
    out.note(`Only the newest ${data.length} jobs are included. For the others, raise --max or repeat the command.`)
  if (data.length === 0) out.note('No matching jobs.')
  if (!out.isHumanReadable) for (const job of data) await out.json(isDryRun ? { ...job, dry_run: true } : job)
  else if (isDryRun && data.length > 0) await out.write(dryRunTable(data, out.columns))
  else for (const job of data) await out.write(`${job.error ? rejectedLine(job) : SUCCESS_LINES[action](job)}\n`)
  if (isDryRun && data.length > 0) out.note(`Dry run: nothing was changed. To ${action} these jobs, omit --dry-run.`)
  const rejected = data.filter(({ error }) => error).length
  if (rejected === 0) return EXIT.ok
  throw new CommandError(EXIT.refused, `${rejected} of ${data.length} jobs were rejected.`)
}

function rejectedLine({ id, error }: BulkResult): string {
  return `${id} rejected: ${plain(error?.message ?? '')}`
}

function dryRunTable(data: readonly BulkResult[], columnsMax: number): string {
  const rows = data.map(({ id, project, model, status }) => [id, project ?? '', model ?? '', status])
  return tableOf({ head: ['job', 'project', 'model', 'status'], rows, spare: [] }, columnsMax)
}

export const JOB_SELECTOR_OPTIONS = {
  'all-projects': { type: 'boolean' },
  project: { type: 'string' },
  pool: { type: 'string' },
  model: { type: 'string' },
} as const

export const JOB_SELECTOR_HELP = `Options for keys with the admin scope:
  --all-projects   select jobs of every project
  --project P      select jobs of one project, by id or name
  --pool POOL      with either of these: only jobs in this pool
  --model MODEL    with either of these: only jobs of this model`

/**
 * Returns the filter for the admin API, or undefined if the command applies only to the key's own project.
 *
 * @throws CommandError for an invalid option
 */
export function adminFilterOf(values: Values): AdminFilter | undefined {
  const project = values.text('project')
  const isAllProjects = values.has('all-projects')
  const [pool, model] = [values.text('pool'), values.text('model')]
  if (!isAllProjects && project === undefined) {
    if (pool === undefined && model === undefined) return undefined
    throw usageError('--pool and --model require --all-projects or --project.')
  }
  if (isAllProjects && project !== undefined) throw usageError('Use either --all-projects or --project, not both.')
  const unsupported = ['endpoint', 'group', 'metadata'].find((name) => values.given().includes(name))
  if (unsupported !== undefined) {
    throw usageError(`--${unsupported} cannot be combined with --all-projects or --project.`)
  }
  const since = values.text('since')
  return {
    project,
    pool,
    model,
    statuses: values.parts('status'),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}
