import { setTimeout as delay } from 'node:timers/promises'
import type { BatchesApi, BatchView } from '#services/cli/client/http.ts'
import { endedAt } from '#services/cli/client/job.ts'
import { ESTIMATING, endsText, rateText } from '#services/cli/client/job-text.ts'
import { barLine, stoppedText } from '#services/cli/commands/following.ts'
import { CommandError, EXIT, type Output, plain } from '#services/cli/text/output.ts'

export const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])

const POLL_INTERVAL_MS = 1_000
const PIPED_INTERVAL_MS = 10_000
/**
 * Maximum number of consecutive failed polls. Together with the delays between the polls, this number gives the service about two minutes
 * to restart.
 */
const FAILURES_MAX = 30
const RETRY_DELAY_MS = 4_000

interface FollowOptions {
  readonly cancelOnInterrupt: boolean
  /** Returns a message for the user after Ctrl-C: the state of the output file, and the command that continues the run. */
  readonly continueText: () => string
}

/** Follows a batch by polling, with a progress line on a terminal and a line per 10 s otherwise. */
export class BatchProgress {
  readonly #batches: BatchesApi
  readonly #out: Output
  readonly #options: FollowOptions
  #shownMs = 0
  #shown = ''
  #isFollowing = false
  #followed: string | undefined
  /** Estimated end of the batch, for the message after Ctrl-C. */
  #ends = ''

  constructor(batches: BatchesApi, out: Output, options: FollowOptions) {
    this.#batches = batches
    this.#out = out
    this.#options = options
  }

  /** Whether {@link follow} handles Ctrl-C now. */
  get isFollowing(): boolean {
    return this.#isFollowing
  }

  /** Id of the batch that is or was followed last. */
  get followed(): string | undefined {
    return this.#followed
  }

  /** @throws CommandError `interrupted` after Ctrl-C, `unreachable` after too many failed polls */
  async follow(batch: BatchView): Promise<BatchView> {
    const interrupt = new AbortController()
    let isCancelled = false
    const onInterrupt = () => {
      if (!this.#options.cancelOnInterrupt || isCancelled) return interrupt.abort()
      isCancelled = true
      this.#note(`Cancelling ${batch.id}; the answers so far will be written. To stop at once: press Ctrl-C again`)
      void this.#batches.cancel(batch.id).catch((error: Error) => this.#note(plain(error.message)))
    }
    process.on('SIGINT', onInterrupt)
    this.#isFollowing = true
    this.#followed = batch.id
    try {
      return await this.#untilEnded(batch, interrupt.signal)
    } catch (error) {
      if (!interrupt.signal.aborted) throw error
      const next = [
        this.#options.continueText(),
        `To see the progress: sluice follow ${batch.id}`,
        `To cancel: sluice cancel ${batch.id}`,
      ]
      throw new CommandError(EXIT.interrupted, stoppedText(batch.id, this.#ends), next.join('\n'))
    } finally {
      this.#isFollowing = false
      process.off('SIGINT', onInterrupt)
      if (this.#out.canRedraw) this.#out.redraw('')
    }
  }

  async #untilEnded(batch: BatchView, signal: AbortSignal): Promise<BatchView> {
    let failures = 0
    for (let current = batch; ; ) {
      signal.throwIfAborted()
      if (failures === 0) this.#show(current)
      if (failures === 0 && ENDED.has(current.status)) return current
      await delay(failures === 0 ? POLL_INTERVAL_MS : RETRY_DELAY_MS, undefined, { signal })
      try {
        current = await this.#batches.get(batch.id)
        failures = 0
      } catch (error) {
        if (!isTemporary(error) || ++failures >= FAILURES_MAX) throw error
        if (failures === 1) this.#note(`${plain((error as Error).message)} Trying again; the batch continues to run.`)
      }
    }
  }

  #show(batch: BatchView): void {
    const { status, request_counts: counts, created_at } = batch
    const { total, completed, failed } = counts
    const done = completed + failed
    const failures = failed > 0 ? `, ${failed} failed` : ''
    const parts = [`${done} of ${total} done${failures}`, rateOf(batch), waitText(batch)]
    this.#ends = endsText(batch.progress ?? {})
    const message = total > 0 ? parts.filter(Boolean).join(', ') : null
    const percent = total > 0 ? (100 * done) / total : null
    if (this.#out.canRedraw) {
      const seconds = Math.max(0, (endedAt(batch) ?? Math.floor(Date.now() / 1_000)) - created_at)
      const line = barLine(status.replace('_', ' '), { percent, message }, seconds, this.#out.columns - 1)
      return this.#out.redraw(line)
    }
    const now = Date.now()
    if (message === null || message === this.#shown || (!ENDED.has(status) && now - this.#shownMs < PIPED_INTERVAL_MS))
      return
    this.#shown = message
    this.#shownMs = now
    this.#out.note(`${plain(status)}: ${message}`)
  }

  #note(line: string): void {
    if (this.#out.canRedraw) this.#out.redraw('')
    this.#out.note(line)
  }
}

function rateOf({ progress, waiting_for }: BatchView): string {
  const text = rateText(progress ?? {})
  return waiting_for && text === ESTIMATING ? '' : text
}

function waitText({ waiting_for }: BatchView): string {
  return waiting_for ? `waiting: ${plain(waiting_for)}` : ''
}

/** Whether polling may succeed later: the service is unreachable, perhaps because it restarts, or it answered 429. */
function isTemporary(error: unknown): boolean {
  const status = (error as { status?: number }).status
  return error instanceof CommandError && (error.exit === EXIT.unreachable || status === 429)
}
