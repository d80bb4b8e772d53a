import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

/** `sluice cancel` */
export const cancel: Command = {
  summary: 'Cancel a job',
  help: `Usage: sluice cancel JOB

Cancels a job that waits, and asks a running one to stop: its status is cancelling until it did. Work that finished first
wins. A research that was asked for with "on_cancel": "partial" writes a report of what it has found, within half a minute, and
completes; a second cancel ends it at once. A job that ended before is refused (exit code 5).

Example:
  sluice cancel job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F`,
  options: {},
  async run({ args, api, out }): Promise<ExitCode> {
    const job = await api.cancel(onlyArgument(args, 'JOB'))
    if (out.isForPeople) await out.write(`${job.id} ${plain(job.status)}\n`)
    else await out.json(job)
    return EXIT.ok
  },
}
