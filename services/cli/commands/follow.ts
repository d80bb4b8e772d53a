import { type Command, onlyArgument } from '#services/cli/command.ts'
import type { ExitCode } from '#services/cli/failure.ts'
import { followBatch } from '#services/cli/following/batch.ts'
import { follow } from '#services/cli/following/following.ts'

const AFTER_MAX = 2 ** 31 - 1

/** `sluice follow` */
export const followCommand: Command = {
  summary: 'Follow a job until it ends',
  help: `Usage: sluice follow JOB [--after N]

Follows a job or a batch until it ends and exits as it ended: 0 completed, 1 failed or expired, 3 cancelled. On a terminal it shows
a progress bar and the output as it comes; elsewhere, and with --json, each event as a line of JSON. A lost connection
is taken up again where it broke, and a service that is just starting is waited for some seconds. Ctrl-C stops the following,
not the job.

Options:
  --after N  leave out the events up to number N

Examples:
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --after 17
  sluice follow batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --json | jq -r .type`,
  options: { after: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const { values, args } = invocation
    const id = onlyArgument(args, 'JOB')
    const after = values.count('after', 0, AFTER_MAX) ?? 0
    return id.startsWith('batch_') ? await followBatch(invocation, id, after) : await follow(invocation, id, after)
  },
}
