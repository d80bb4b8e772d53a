import { setTimeout as delay } from 'node:timers/promises'
import { followEvents } from '#services/cli/client/event-stream.ts'
import { exitOf, isLast, type JobView, type Progress } from '#services/cli/client/job.ts'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { type FollowView, openFollowView } from '#services/cli/text/follow-view.ts'
import { plain } from '#services/cli/text/output.ts'

/** What Ctrl-C does to a job that is followed, where it does not only end the following. */
export interface Interrupts {
  /** The first Ctrl-C came before the following began. */
  readonly isFirstOver?: boolean
  /** The first time: the following goes on. Must not throw. */
  onFirst(): void
  /** The second time, when the following has ended. @returns What it did, for whoever asked for it */
  onSecond(): Promise<string>
}

/** What else belongs to following a job. */
export interface FollowMore {
  readonly interrupts?: Interrupts
  /**
   * Looks how far it is, where that is known better than its events tell: people see that instead of what these say, and nothing of its
   * result.
   */
  readonly look?: () => Promise<Progress>
}

type Shown = Parameters<FollowView['event']>[0]

/** How often it is looked how far a job is, for people, and for a file or another program. */
const LOOK_MS = 1_000
const PIPED_LOOK_MS = 10_000

/**
 * Follows a job after event number `after` and shows it.
 *
 * @returns how the job ended, as an exit code
 */
export async function follow(
  { api, out }: Invocation,
  id: string,
  after: number,
  { interrupts, look }: FollowMore = {},
): Promise<ExitCode> {
  const view = openFollowView(out)
  const isWatched = look !== undefined && out.isForPeople
  const stopLooking = look && lookOn(view, look, isWatched)
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
      const shown = look ? withoutProgress(event, isWatched) : event
      if (shown) await view.event(shown)
      last = event.sequence_number ?? last
      if (isLast(event)) ended = event.job ?? undefined
    }
    ended ??= await api.get(id)
    if (!isWatched) await view.end(ended)
  } catch (error) {
    if (!signal.aborted) throw error
    if (interrupts) throw new CommandError(EXIT.interrupted, await interrupts.onSecond())
    const from = isWatched ? '' : ` --after ${last}`
    const next = `It goes on. Follow it further: sluice follow ${id}${from}. Stop it: sluice cancel ${id}`
    throw new CommandError(EXIT.interrupted, `${plain(id)} is no longer followed.`, next)
  } finally {
    process.off('SIGINT', onInterrupt)
    stopLooking?.()
    view.close()
  }
  // A service newer than this tool may know ends that this tool does not.
  return exitOf(ended) ?? EXIT.failed
}

/** An event where it is looked how far the job is: what it tells of that itself is older. Nothing: it tells no more than that. */
function withoutProgress(event: Shown, isWatched: boolean): Shown | undefined {
  if (isWatched) return { ...event, progress: undefined }
  return event.type === 'job.progress' ? undefined : event
}

/** Shows how far a job is, again and again; where nobody watches, when that has changed. @returns Ends it. */
function lookOn(view: FollowView, look: () => Promise<Progress>, isWatched: boolean): () => void {
  const stop = new AbortController()
  let told: string | null | undefined
  const go = async () => {
    while (!stop.signal.aborted) {
      // Where the service is away the events tell so.
      const progress = await look().catch(() => undefined)
      const isNews = isWatched || progress?.message !== told
      if (progress && isNews && !stop.signal.aborted) await view.event({ type: 'job.progress', progress })
      told = progress?.message ?? told
      await delay(isWatched ? LOOK_MS : PIPED_LOOK_MS, undefined, { signal: stop.signal }).catch(() => {})
    }
  }
  void go()
  return () => stop.abort()
}
