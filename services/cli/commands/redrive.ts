import type { JobView } from '#services/cli/client/job.ts'
import type { JobFilter, JobsApi } from '#services/cli/client/jobs-api.ts'
import { Refusal } from '#services/cli/client/refusal.ts'
import type { Command, Invocation, Values } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { MANY_MAX, moveMany } from '#services/cli/operator/many.ts'
import { adminFilterOf, WHICH_HELP, WHICH_OPTIONS } from '#services/cli/operator/which.ts'
import { plain } from '#services/cli/text/output.ts'
import { timeOf } from '#services/cli/text/time.ts'
import { jobTable } from './jobs.ts'

const MAX_DEFAULT = 100
const MAX_MAX = 10_000
/** Jobs that a filter looks at, those that were run again before among them. */
const LOOKED_AT_MAX = 100_000
const STATUSES: readonly string[] = ['failed', 'expired', 'cancelled']

/** `sluice redrive` */
export const redrive: Command = {
  summary: 'Run failed, expired or cancelled jobs again',
  help: `Usage: sluice redrive JOB ...
       sluice redrive --status failed [--since TIME] [--endpoint PATH]

Runs jobs again that failed, expired or were cancelled. Each becomes a new job, whose parent_id names the old one; the old
one stays as it is. With --status, jobs that were run again before are left out, so that it may be said twice.

Options:
  --status LIST    those of this key that ended so: failed, expired, cancelled, with commas
  --since TIME     of those only jobs since then: 2030-01-31T08:00:00Z, unix seconds, or 2h ago
  --endpoint PATH  of those only jobs of this endpoint
  --max N          at most so many, newest first (default ${MAX_DEFAULT}, most ${MAX_MAX})
  --dry-run        only show which jobs would run again

${WHICH_HELP}
  So does a JOB that is named. At most ${MANY_MAX} of all projects at once.

Examples:
  sluice redrive job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice redrive --status failed,expired --since 2h --dry-run
  sluice redrive --status failed --since 2h --max 500
  sluice redrive --all-projects --status failed --model smollm2-135m-instruct --since 2h --dry-run`,
  options: {
    status: { type: 'string' },
    since: { type: 'string' },
    endpoint: { type: 'string' },
    max: { type: 'string' },
    'dry-run': { type: 'boolean' },
    ...WHICH_OPTIONS,
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const ofAll = adminFilterOf(values)
    const max = values.count('max', 1, ofAll ? MANY_MAX : MAX_MAX) ?? MAX_DEFAULT
    if (ofAll) {
      requireStatuses(values, args)
      return await moveMany(invocation, 'redrive', ofAll, max)
    }
    const filter = filterOf(values, args)
    const { found, isCut } = filter ? await select(api, filter, max) : await getAll(api, args, max)
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
  requireStatuses(values, args)
  return {
    statuses,
    endpoint: values.text('endpoint'),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}

/** @throws CommandError where what is asked for cannot run again, or is asked for twice */
function requireStatuses(values: Values, args: readonly string[]): void {
  if (args.length > 0) throw usageError('Give job ids or --status, not both.')
  const unknown = values.parts('status')?.find((status) => !STATUSES.includes(status))
  if (unknown !== undefined) throw usageError(`--status ${unknown}: only ${STATUSES.join(', ')} jobs run again.`)
}

/** Jobs that somebody named. */
async function getAll(api: JobsApi, ids: readonly string[], max: number): Promise<Found> {
  if (ids.length > max) throw usageError(`${ids.length} jobs are more than --max ${max}.`)
  const found: JobView[] = []
  for (const id of ids) found.push(await api.get(id))
  return { found, isCut: false }
}

/** Jobs that a filter selects, newest first, without those that were run again before. */
async function select(api: JobsApi, filter: JobFilter, max: number): Promise<Found> {
  const found: JobView[] = []
  for await (const job of api.list(filter, LOOKED_AT_MAX)) {
    if (await api.findRepeat(job)) continue
    if (found.length === max) return { found, isCut: true }
    found.push(job)
  }
  return { found, isCut: false }
}

interface Found {
  readonly found: readonly JobView[]
  /** There were more. */
  readonly isCut: boolean
}

async function show({ out }: Invocation, found: readonly JobView[]): Promise<ExitCode> {
  if (!out.isForPeople) for (const job of found) await out.json({ id: job.id, status: job.status, dry_run: true })
  else if (found.length > 0) await out.write(jobTable(found, out.columns))
  const which = found.length === 1 ? 'this job' : `these ${found.length} jobs`
  if (found.length > 0) out.note(`Nothing was run. To run ${which} again, leave out --dry-run.`)
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
