import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { MANY_MAX, moveMany } from '#services/cli/operator/many.ts'
import { adminFilterOf, WHICH_HELP, WHICH_OPTIONS } from '#services/cli/operator/which.ts'
import { plain } from '#services/cli/text/output.ts'

const MAX_DEFAULT = 100

/** `sluice cancel` */
export const cancel: Command = {
  summary: 'Cancel a job',
  help: `Usage: sluice cancel JOB
       sluice cancel --all-projects|--project P [--status LIST] [--since TIME] [--max N] [--dry-run]

Cancels a job that waits, and asks a running one to stop: its status is cancelling until it did. Work that finished first
wins. A research that was asked for with "on_cancel": "partial" writes a report of what it has found, within half a minute, and
completes; a second cancel ends it at once. A job that ended before is refused (exit code 5).

${WHICH_HELP}
  --status LIST    of those only these, with commas: queued, in_progress (default both)
  --since TIME     of those only jobs since then: 2030-01-31T08:00:00Z, unix seconds, or 2h ago
  --max N          at most so many, newest first (default ${MAX_DEFAULT}, most ${MANY_MAX})
  --dry-run        only show which jobs it would be

Examples:
  sluice cancel job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice cancel --project proj_7Qm2xT9b --status queued --dry-run`,
  options: {
    ...WHICH_OPTIONS,
    status: { type: 'string' },
    since: { type: 'string' },
    max: { type: 'string' },
    'dry-run': { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const ofAll = adminFilterOf(values)
    if (ofAll && args.length > 0) throw usageError('Give a job or --all-projects or --project, not both.')
    if (ofAll) return await moveMany(invocation, 'cancel', ofAll, values.count('max', 1, MANY_MAX) ?? MAX_DEFAULT)
    const lost = ['status', 'since', 'max', 'dry-run'].find((name) => values.given().includes(name))
    if (lost !== undefined) throw usageError(`--${lost} goes with --all-projects or --project.`)
    const job = await api.cancel(onlyArgument(args, 'JOB'))
    if (out.isForPeople) await out.write(`${job.id} ${plain(job.status)}\n`)
    else await out.json(job)
    return EXIT.ok
  },
}
