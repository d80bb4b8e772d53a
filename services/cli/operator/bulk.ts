import type { AdminFilter, BulkResult } from '#services/cli/client/admin-api.ts'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain, tableOf } from '#services/cli/text/output.ts'

/** Maximum jobs per bulk action, as enforced by the service. */
export const BULK_MAX = 1_000

const SUCCESS_LINES = {
  cancel: ({ id, status }: BulkResult) => `${id} ${plain(status)}`,
  redrive: ({ id, new_id }: BulkResult) => `${id} runs again as ${plain(new_id ?? '')}`,
}

/** Cancels or redrives jobs of other projects in one request. @throws CommandError if some jobs were rejected */
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
