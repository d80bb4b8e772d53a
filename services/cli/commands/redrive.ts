import { ApiError } from '#services/cli/client/http.ts'
import type { JobView } from '#services/cli/client/job.ts'
import type { JobFilter, JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, EXIT, type ExitCode, orList, plain, timeOf, usageError } from '#services/cli/text/output.ts'
import { adminFilterOf, BULK_MAX, JOB_SELECTOR_HELP, JOB_SELECTOR_OPTIONS, runBulkAction } from './bulk.ts'
import type { Command, Invocation, Values } from './command.ts'
import { jobTable } from './jobs.ts'

const MAX_DEFAULT = 100
const MAX_MAX = 10_000
/** Maximum jobs that `--status` examines, including those that were redriven before. */
const SCANNED_MAX = 100_000
const STATUSES: readonly string[] = ['failed', 'expired', 'cancelled']

export const redrive: Command = {
  summary: 'Run failed, expired or cancelled jobs again',
  help: `Usage: sluice redrive JOB ...
       sluice redrive --status failed [--since TIME] [--endpoint PATH]

Runs failed, expired or cancelled jobs again. Each job is submitted as a new job, whose parent_id is the id of the old job. The old
job does not change. With --status, jobs that were redriven before are skipped, so running the command twice is safe.

Options:
  --status LIST    redrive the jobs of your project in these statuses: failed, expired, cancelled
  --since TIME     with --status: only jobs created since 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 2h
  --endpoint PATH  with --status: only jobs of this endpoint
  --max N          maximum number of jobs, newest first (default ${MAX_DEFAULT}, maximum ${MAX_MAX})
  --dry-run        only list the jobs that would run again

${JOB_SELECTOR_HELP}

With --all-projects or --project the maximum of --max is ${BULK_MAX}. A JOB of another project requires the admin scope too.

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
    ...JOB_SELECTOR_OPTIONS,
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const adminFilter = adminFilterOf(values)
    const max = values.count('max', 1, adminFilter ? BULK_MAX : MAX_MAX) ?? MAX_DEFAULT
    if (adminFilter) {
      requireStatuses(values, args)
      return await runBulkAction(invocation, 'redrive', adminFilter, max)
    }
    const filter = filterOf(values, args)
    const { found, isCut } = filter ? await select(api, filter, max) : await getAll(api, args, max)
    if (isCut)
      out.note(`More jobs match than --max ${max} allows; only the newest are included. To include more, raise --max.`)
    if (found.length === 0) out.note(filter ? NO_JOBS : 'No matching jobs.')
    if (values.has('dry-run')) return await show(invocation, found)
    return await redriveAll(invocation, found)
  },
}

const NO_JOBS =
  'No matching jobs. Requests of batches cannot be redriven. To run the failed requests of a batch again: sluice batch BATCH --retry-failed'

function filterOf(values: Values, args: readonly string[]): JobFilter | undefined {
  const statuses = values.parts('status')
  const since = values.text('since')
  if (statuses === undefined) {
    if (args.length === 0) throw usageError('Missing argument: JOB, or --status such as --status failed.')
    if (since !== undefined || values.text('endpoint') !== undefined) {
      throw usageError('--since and --endpoint require --status.')
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

function requireStatuses(values: Values, args: readonly string[]): void {
  if (args.length > 0) throw usageError('Use either job ids or --status, not both.')
  const invalid = values.parts('status')?.find((status) => !STATUSES.includes(status))
  if (invalid !== undefined) throw usageError(`--status must be ${orList(STATUSES)}; got '${invalid}'.`)
}

async function getAll(api: JobsApi, ids: readonly string[], max: number): Promise<Found> {
  if (ids.length > max) throw usageError(`Too many jobs: got ${ids.length}, but --max is ${max}.`)
  const found: JobView[] = []
  for (const id of ids) found.push(await api.get(id))
  return { found, isCut: false }
}

async function select(api: JobsApi, filter: JobFilter, max: number): Promise<Found> {
  const found: JobView[] = []
  for await (const job of api.list(filter, SCANNED_MAX)) {
    if (await api.findRedriven(job)) continue
    if (found.length === max) return { found, isCut: true }
    found.push(job)
  }
  return { found, isCut: false }
}

interface Found {
  readonly found: readonly JobView[]
  /** Whether more than `max` jobs matched. */
  readonly isCut: boolean
}

async function show({ out }: Invocation, found: readonly JobView[]): Promise<ExitCode> {
  if (!out.isHumanReadable) for (const job of found) await out.json({ id: job.id, status: job.status, dry_run: true })
  else if (found.length > 0) await out.write(jobTable(found, out.columns))
  const jobs = found.length === 1 ? 'this job' : `these ${found.length} jobs`
  if (found.length > 0) out.note(`Dry run: nothing was changed. To redrive ${jobs}, omit --dry-run.`)
  return EXIT.ok
}

/** HTTP statuses of errors that concern a single job. After such an error, the remaining jobs are still redriven. */
const JOB_ERROR_STATUSES: readonly number[] = [404, 409]

async function redriveAll({ api, out }: Invocation, found: readonly JobView[]): Promise<ExitCode> {
  let rejected = 0
  for (const { id } of found) {
    try {
      const job = await api.redrive(id)
      if (out.isHumanReadable) await out.write(`${id} runs again as ${job.id}\n`)
      else await out.json({ id, new_id: job.id, status: job.status })
    } catch (error) {
      if (!(error instanceof ApiError) || !JOB_ERROR_STATUSES.includes(error.status) || found.length === 1) throw error
      rejected++
      if (out.isHumanReadable) out.note(`${id} rejected: ${plain(error.message)}`)
      else await out.json({ id, error: error.message })
    }
  }
  if (rejected === 0) return EXIT.ok
  throw new CommandError(EXIT.refused, `${rejected} of ${found.length} jobs were rejected.`)
}
