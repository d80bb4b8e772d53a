import { followEvents } from '#services/cli/client/event-stream.ts'
import { exitOf, isLast, type JobView } from '#services/cli/client/job.ts'
import { type Command, type Invocation, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { openFollowView } from '#services/cli/text/follow-view.ts'
import { plain } from '#services/cli/text/output.ts'

const AFTER_MAX = 2 ** 31 - 1

/** `sluice follow` */
export const followCommand: Command = {
  summary: 'Follow a job until it ends',
  help: `Usage: sluice follow JOB [--after N]

Follows a job until it ends and exits as it ended: 0 completed, 1 failed or expired, 3 cancelled. On a terminal it shows
a progress bar and the output as it comes; elsewhere, and with --json, each event as a line of JSON. A lost connection
is taken up again where it broke. Ctrl-C stops the following, not the job.

Options:
  --after N  leave out the events up to number N

Examples:
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --after 17
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --json | jq -r .type`,
  options: { after: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const { values, args } = invocation
    return await follow(invocation, onlyArgument(args, 'JOB'), values.count('after', 0, AFTER_MAX) ?? 0)
  },
}

/** What Ctrl-C does to a job that is followed, where it does not only end the following. */
export interface Interrupts {
  /** The first Ctrl-C came before the following began. */
  readonly isFirstOver?: boolean
  /** The first time: the following goes on. Must not throw. */
  onFirst(): void
  /** The second time, when the following has ended. @returns What it did, for whoever asked for it */
  onSecond(): Promise<string>
}

/**
 * Follows a job after event number `after` and shows it.
 *
 * @returns how the job ended, as an exit code
 */
export async function follow(
  { api, out }: Invocation,
  id: string,
  after: number,
  interrupts?: Interrupts,
): Promise<ExitCode> {
  const view = openFollowView(out)
  const interrupt = new AbortController()
  const { signal } = interrupt
  let isFirst = interrupts !== undefined && !interrupts.isFirstOver
  const onInterrupt = () => {
    if (isFirst) interrupts?.onFirst()
    else interrupt.abort()
    isFirst = false
  }
  process.on('SIGINT', onInterrupt)
  let last = after
  let ended: JobView | undefined
  try {
    const onCut = (why: string, delayMs: number) => view.cut(why, delayMs)
    for await (const event of followEvents(api.http, id, { after, signal, onCut })) {
      await view.event(event)
      last = event.sequence_number ?? last
      if (isLast(event)) ended = event.job ?? undefined
    }
    ended ??= await api.get(id)
    await view.end(ended)
  } catch (error) {
    if (!signal.aborted) throw error
    if (interrupts) throw new CommandError(EXIT.interrupted, await interrupts.onSecond())
    const next = `It goes on. Follow it further: sluice follow ${id} --after ${last}. Stop it: sluice cancel ${id}`
    throw new CommandError(EXIT.interrupted, `${plain(id)} is no longer followed.`, next)
  } finally {
    process.off('SIGINT', onInterrupt)
    view.close()
  }
  // A service newer than this tool may know ends that this tool does not.
  return exitOf(ended) ?? EXIT.failed
}
