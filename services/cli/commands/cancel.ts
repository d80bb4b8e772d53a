import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { BULK_MAX, runBulkAction } from '#services/cli/operator/bulk.ts'
import { adminFilterOf, JOB_SELECTOR_HELP, JOB_SELECTOR_OPTIONS } from '#services/cli/operator/job-selectors.ts'
import { plain } from '#services/cli/text/output.ts'

const MAX_DEFAULT = 100

export const cancel: Command = {
  summary: 'Cancel a job',
  help: `Usage: sluice cancel JOB
       sluice cancel --all-projects|--project P [--status LIST] [--since TIME] [--max N] [--dry-run]

Cancels a queued job at once. A running job has the status cancelling until its worker has stopped; if the job finishes first,
it keeps its result. A research job submitted with "on_cancel": "partial" writes a partial report within 30 seconds and
completes; a second cancel stops it at once. A job that has already finished is an error (exit code 5).

${JOB_SELECTOR_HELP}
  --status LIST    only jobs in these statuses: queued, in_progress (default: both)
  --since TIME     only jobs created since 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 2h
  --max N          maximum number of jobs, newest first (default ${MAX_DEFAULT}, maximum ${BULK_MAX})
  --dry-run        only list the jobs that would be cancelled

Examples:
  sluice cancel job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice cancel --project proj_7Qm2xT9b --status queued --dry-run`,
  options: {
    ...JOB_SELECTOR_OPTIONS,
    status: { type: 'string' },
    since: { type: 'string' },
    max: { type: 'string' },
    'dry-run': { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const adminFilter = adminFilterOf(values)
    if (adminFilter && args.length > 0) {
      throw usageError('Use either a JOB or --all-projects or --project, not both.')
    }
    if (adminFilter)
      return await runBulkAction(invocation, 'cancel', adminFilter, values.count('max', 1, BULK_MAX) ?? MAX_DEFAULT)
    const misplaced = ['status', 'since', 'max', 'dry-run'].find((name) => values.given().includes(name))
    if (misplaced !== undefined) throw usageError(`--${misplaced} requires --all-projects or --project.`)
    const job = await api.cancel(onlyArgument(args, 'JOB'))
    if (out.isHumanReadable) await out.write(`${job.id} ${plain(job.status)}\n`)
    else await out.json(job)
    return EXIT.ok
  },
}
