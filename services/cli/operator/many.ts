import type { AdminFilter, MovedJob } from '#services/cli/client/admin-api.ts'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain, tableOf } from '#services/cli/text/output.ts'

/** Jobs of one call at most, as the service bounds it. */
export const MANY_MAX = 1_000

/** What is said of a job that was moved. */
const DONE = {
  cancel: ({ id, status }: MovedJob) => `${id} ${plain(status)}`,
  redrive: ({ id, new_id }: MovedJob) => `${id} runs again as ${plain(new_id ?? '')}`,
}

/** Cancels or runs again many jobs of other projects. @throws CommandError when some were refused */
export async function moveMany(
  { api, out, values }: Invocation,
  what: 'cancel' | 'redrive',
  filter: AdminFilter,
  max: number,
): Promise<ExitCode> {
  const isDry = values.has('dry-run')
  const { data, has_more } = await api.admin.many(what, filter, max, isDry)
  if (has_more) out.note(`There are more jobs than the ${data.length} that are taken: say it again, or raise --max.`)
  if (data.length === 0) out.note('No such jobs.')
  if (!out.isForPeople) for (const job of data) await out.json(isDry ? { ...job, dry_run: true } : job)
  else if (isDry && data.length > 0) await out.write(movedTable(data, out.columns))
  else for (const job of data) await out.write(`${job.error ? refusedLine(job) : DONE[what](job)}\n`)
  if (isDry && data.length > 0) out.note('Nothing was done. To do it, leave out --dry-run.')
  const refused = data.filter(({ error }) => error).length
  if (refused === 0) return EXIT.ok
  throw new CommandError(EXIT.refused, `${refused} of ${data.length} jobs were refused.`)
}

function refusedLine({ id, error }: MovedJob): string {
  return `${id} is refused: ${plain(error?.message ?? '')}`
}

function movedTable(data: readonly MovedJob[], columnsMax: number): string {
  const rows = data.map(({ id, project, model, status }) => [id, project ?? '', model ?? '', status])
  return tableOf({ head: ['job', 'project', 'model', 'status'], rows, spare: [] }, columnsMax)
}
