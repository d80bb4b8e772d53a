import { setTimeout as delay } from 'node:timers/promises'
import { followEvents } from '#services/cli/client/event-stream.ts'
import { exitCodeOf, isFinalEvent, type JobView, type Progress } from '#services/cli/client/job.ts'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { type FollowView, openFollowView } from '#services/cli/text/follow-view.ts'
import { plain } from '#services/cli/text/output.ts'

/** Handlers for Ctrl-C. Without them, the first Ctrl-C stops following and leaves the job running. */
export interface Interrupts {
  /** The user already pressed Ctrl-C once before following began. */
  readonly wasInterrupted?: boolean
  /** First Ctrl-C; following continues. Must not throw. */
  onFirst(): void
  /** Second Ctrl-C, after following has stopped. @returns The message to print */
  onSecond(): Promise<string>
}

export interface FollowExtras {
  readonly interrupts?: Interrupts
  /**
   * Polls a progress that is more exact than the job's events, such as the request counts of a batch. On a terminal, the polled progress
   * replaces the progress of the events, and the job's result is not printed.
   */
  readonly pollProgress?: () => Promise<Progress>
}

type ViewEvent = Parameters<FollowView['event']>[0]

/** Poll intervals on a terminal and in a pipe. */
const POLL_INTERVAL_MS = 1_000
const PIPED_POLL_INTERVAL_MS = 10_000

/**
 * Follows a job and displays the events after sequence number `after`.
 *
 * @returns The exit code for the job's final status
 */
export async function follow(
  { api, out }: Invocation,
  id: string,
  after: number,
  { interrupts, pollProgress }: FollowExtras = {},
): Promise<ExitCode> {
  const view = openFollowView(out)
  const isSummaryOnly = pollProgress !== undefined && out.isHumanReadable
  const stopPolling = pollProgress && startPolling(view, pollProgress, isSummaryOnly)
  const interrupt = new AbortController()
  const { signal } = interrupt
  let isFirst = interrupts !== undefined && !interrupts.wasInterrupted
  const onInterrupt = () => {
    if (isFirst) interrupts?.onFirst()
    else interrupt.abort()
    isFirst = false
  }
  process.on('SIGINT', onInterrupt)
  let last = after
  let ended: JobView | undefined
  try {
    const onReconnect = (reason: string, delayMs: number) => view.reconnecting(reason, delayMs)
    for await (const event of followEvents(api.http, id, { after, signal, onReconnect })) {
      const shown = pollProgress ? withoutProgress(event, isSummaryOnly) : event
      if (shown) await view.event(shown)
      last = event.sequence_number ?? last
      if (isFinalEvent(event)) ended = event.job ?? undefined
    }
    ended ??= await api.get(id)
    if (!isSummaryOnly) await view.end(ended)
  } catch (error) {
    if (!signal.aborted) throw error
    if (interrupts) throw new CommandError(EXIT.interrupted, await interrupts.onSecond())
    const from = isSummaryOnly ? '' : ` --after ${last}`
    const next = `To resume: sluice follow ${id}${from}\nTo cancel: sluice cancel ${id}`
    throw new CommandError(EXIT.interrupted, `Stopped following ${plain(id)}; it was not cancelled.`, next)
  } finally {
    process.off('SIGINT', onInterrupt)
    stopPolling?.()
    view.close()
  }
  // A newer service may have terminal statuses that this version does not support.
  return exitCodeOf(ended) ?? EXIT.failed
}

/** Removes the progress from an event, because the polled progress is newer. Undefined if the event contains nothing else. */
function withoutProgress(event: ViewEvent, isSummaryOnly: boolean): ViewEvent | undefined {
  if (isSummaryOnly) return { ...event, progress: undefined }
  return event.type === 'job.progress' ? undefined : event
}

/** Polls the progress and displays it; in a pipe only if it has changed. @returns A function that stops the polling. */
function startPolling(view: FollowView, read: () => Promise<Progress>, isTerminal: boolean): () => void {
  const stop = new AbortController()
  const intervalMs = isTerminal ? POLL_INTERVAL_MS : PIPED_POLL_INTERVAL_MS
  let lastMessage: string | null | undefined
  const poll = async () => {
    while (!stop.signal.aborted) {
      // The event stream already reports an unreachable service.
      const progress = await read().catch(() => undefined)
      const isNew = isTerminal || progress?.message !== lastMessage
      if (progress && isNew && !stop.signal.aborted) await view.event({ type: 'job.progress', progress })
      lastMessage = progress?.message ?? lastMessage
      await delay(intervalMs, undefined, { signal: stop.signal }).catch(() => {})
    }
  }
  void poll()
  return () => stop.abort()
}
