import { type Command, onlyArgument } from '#services/cli/command.ts'
import type { ExitCode } from '#services/cli/failure.ts'
import { followBatch } from '#services/cli/following/batch.ts'
import { follow } from '#services/cli/following/following.ts'

const AFTER_MAX = 2 ** 31 - 1

export const followCommand: Command = {
  summary: 'Follow a job or batch until it has finished',
  help: `Usage: sluice follow JOB [--after N]

Follows a job or a batch until it has finished. The exit code is 0 for completed, 1 for failed or expired, and 3 for cancelled. On
a terminal, shows a progress bar and the output as it arrives. With --json, or when output is not a TTY, prints each event as a
line of JSON. A lost connection resumes after the last event, and a service that is starting is retried for about 8 seconds.
Ctrl-C stops following but does not cancel the job.

Options:
  --after N  skip events up to sequence number N

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
