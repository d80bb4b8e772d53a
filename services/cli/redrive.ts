import { type Command, CommandError, EXIT, type ExitCode, type Invocation, usageError, type Values } from './command.ts'
import type { JobView } from './job.ts'
import { jobTable } from './jobs.ts'
import type { JobFilter, JobsApi } from './jobs-api.ts'
import { plain } from './output.ts'
import { Refusal } from './refusal.ts'
import { timeOf } from './time.ts'

const MAX_DEFAULT = 100
const MAX_MAX = 10_000
const STATUSES: readonly string[] = ['failed', 'expired', 'cancelled']

/** `sluice redrive` */
export const redrive: Command = {
  summary: 'Run failed, expired or cancelled jobs again',
  help: `Usage: sluice redrive JOB ...
       sluice redrive --status failed [--since TIME] [--endpoint PATH]

Runs jobs again that failed, expired or were cancelled. Each becomes a new job, whose parent_id names the old one; the old
one stays as it is. Asked for twice within a day, the same job gives the same new job.

Options:
  --status LIST    those of this key that ended so: failed, expired, cancelled, with commas
  --since TIME     of those only jobs since then: 2030-01-31T08:00:00Z, unix seconds, or 2h ago
  --endpoint PATH  of those only jobs of this endpoint
  --max N          at most so many, newest first (default ${MAX_DEFAULT}, most ${MAX_MAX})
  --dry-run        show what would run again, and do nothing

Examples:
  sluice redrive job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice redrive --status failed,expired --since 2h --dry-run
  sluice redrive --status failed --since 2h --max 500`,
  options: {
    status: { type: 'string' },
    since: { type: 'string' },
    endpoint: { type: 'string' },
    max: { type: 'string' },
    'dry-run': { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const max = values.count('max', 1, MAX_MAX) ?? MAX_DEFAULT
    const { found, isCut } = await findJobs(api, args, filterOf(values, args), max)
    if (isCut) out.note(`More jobs than --max ${max}: the newest ${max} are taken.`)
    if (found.length === 0) out.note('No jobs to run again.')
    if (values.has('dry-run')) return await show(invocation, found)
    return await redriveAll(invocation, found)
  },
}

function filterOf(values: Values, args: readonly string[]): JobFilter | undefined {
  const statuses = values.parts('status')
  const since = values.text('since')
  if (statuses === undefined) {
    if (args.length === 0) throw usageError('Which jobs? Give their ids, or --status failed.')
    if (since !== undefined || values.text('endpoint') !== undefined) {
      throw usageError('--since and --endpoint narrow --status, which is not given.')
    }
    return undefined
  }
  if (args.length > 0) throw usageError('Give job ids or --status, not both.')
  const unknown = statuses.find((status) => !STATUSES.includes(status))
  if (unknown !== undefined) throw usageError(`--status ${unknown}: only ${STATUSES.join(', ')} jobs run again.`)
  return {
    statuses,
    endpoint: values.text('endpoint'),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}

/** The jobs that are meant, at most `max`, and whether there were more. */
async function findJobs(api: JobsApi, ids: readonly string[], filter: JobFilter | undefined, max: number) {
  if (!filter && ids.length > max) throw usageError(`${ids.length} jobs are more than --max ${max}.`)
  const found: JobView[] = []
  if (!filter) for (const id of ids) found.push(await api.get(id))
  else for await (const job of api.list(filter, max + 1)) found.push(job)
  return { found: found.slice(0, max), isCut: found.length > max }
}

async function show({ out }: Invocation, found: readonly JobView[]): Promise<ExitCode> {
  if (!out.isForPeople) for (const job of found) await out.json({ id: job.id, status: job.status, dry_run: true })
  else if (found.length > 0) await out.write(jobTable(found))
  out.note(`${found.length} would run again. Without --dry-run they do.`)
  return EXIT.ok
}

/** About one job: another one may still run again. Everything else would be said about each of them. */
const OF_THE_JOB: readonly number[] = [404, 409]

/** One after another. One that is refused does not keep the others from running. */
async function redriveAll({ api, out }: Invocation, found: readonly JobView[]): Promise<ExitCode> {
  let refused = 0
  for (const { id } of found) {
    try {
      const job = await api.redrive(id)
      if (out.isForPeople) await out.write(`${id} runs again as ${job.id}\n`)
      else await out.json({ id, new_id: job.id, status: job.status })
    } catch (error) {
      if (!(error instanceof Refusal) || !OF_THE_JOB.includes(error.status) || found.length === 1) throw error
      refused++
      if (out.isForPeople) out.note(`${id} is refused: ${plain(error.message)}`)
      else await out.json({ id, error: error.message })
    }
  }
  if (refused === 0) return EXIT.ok
  throw new CommandError(EXIT.refused, `${refused} of ${found.length} jobs were refused.`)
}
