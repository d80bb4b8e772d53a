import { setTimeout as delay } from 'node:timers/promises'
import { z } from 'zod'
import { batchSummary, Failures, failuresOf } from '#services/cli/client/batch-text.ts'
import { followEvents } from '#services/cli/client/event-stream.ts'
import { BatchesApi, type BatchView, isGone } from '#services/cli/client/http.ts'
import {
  endedAt,
  exitCodeOf,
  isFinalEvent,
  type JobEventView,
  type JobView,
  type Progress,
  queueText,
} from '#services/cli/client/job.ts'
import { endsText, rateText, resultText, textOf } from '#services/cli/client/job-text.ts'
import {
  CommandError,
  coloured,
  EXIT,
  type ExitCode,
  type Output,
  plain,
  printable,
} from '#services/cli/text/output.ts'
import { TABLE_FILE_KEY } from '#shared/tables/answers.ts'
import type { Invocation } from './command.ts'

/** Handlers for Ctrl-C. Without them, the first Ctrl-C stops following and leaves the job running. */
export interface Interrupts {
  /** Whether the user already pressed Ctrl-C once before following began. */
  readonly wasInterrupted?: boolean
  /** Called at the first Ctrl-C, after which following continues. Must not throw. */
  onFirst(): void
  /**
   * Called at the second Ctrl-C, after following has stopped.
   *
   * @returns The message to print
   */
  onSecond(): Promise<string>
}

interface FollowExtras {
  readonly interrupts?: Interrupts
  /** Reads the progress of the job. If set, then the progress is polled and replaces the progress in the events. */
  readonly pollProgress?: () => Promise<Progress>
  /** Returns the last known estimate of the end, such as `ends in about 10 s`. */
  readonly endsNow?: () => string
  /** Command for the results after the end, such as `sluice results BATCH`. Default: `sluice get JOB --result` */
  readonly resultsCommand?: string
}

type ViewEvent = Parameters<FollowView['event']>[0]

const POLL_INTERVAL_MS = 1_000
const PIPED_POLL_INTERVAL_MS = 10_000

export async function follow(
  { api, out }: Invocation,
  id: string,
  after: number,
  { interrupts, pollProgress, endsNow, resultsCommand = `sluice get ${id} --result` }: FollowExtras = {},
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
    const next = `To resume: sluice follow ${id}${from}\nTo print the result after the end: ${resultsCommand}\nTo cancel: sluice cancel ${id}`
    throw new CommandError(EXIT.interrupted, stoppedText(id, endsNow?.() ?? ''), next)
  } finally {
    process.off('SIGINT', onInterrupt)
    stopPolling?.()
    view.close()
  }
  // A newer service may return a final status that this version does not support. Such a status counts as a failure.
  return exitCodeOf(ended) ?? EXIT.failed
}

/** Message after Ctrl-C. @param ends Estimate of the end, such as `ends in about 10 s`, or empty */
export function stoppedText(id: string, ends: string): string {
  return `Stopped following ${plain(id)}, which continues to run${ends && ` and ${ends}`}.`
}

/**
 * Removes the progress from an event, because the polled progress is newer. Undefined for a progress event, unless a terminal shows the
 * label of the event.
 */
function withoutProgress(event: ViewEvent, isSummaryOnly: boolean): ViewEvent | undefined {
  if (isSummaryOnly) return { ...event, progress: undefined }
  return event.type === 'job.progress' ? undefined : event
}

/**
 * Polls the progress and displays it. In a pipe, only changed progress is displayed.
 *
 * @returns A function that stops the polling.
 */
function startPolling(view: FollowView, read: () => Promise<Progress>, isTerminal: boolean): () => void {
  const stop = new AbortController()
  const intervalMs = isTerminal ? POLL_INTERVAL_MS : PIPED_POLL_INTERVAL_MS
  let lastMessage: string | null | undefined
  const poll = async () => {
    while (!stop.signal.aborted) {
      // An error is ignored, because the event stream already reports an unreachable service.
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

const ERRORS_SHOWN_MAX = 10

export async function followBatch(invocation: Invocation, id: string, after: number): Promise<ExitCode> {
  const { api, out } = invocation
  const batches = new BatchesApi(api.http)
  let ends = ''
  const pollProgress = async () => {
    const current = await batches.get(id)
    ends = endsText(current.progress ?? {})
    return progressOf(current)
  }
  const extras = { pollProgress, endsNow: () => ends, resultsCommand: `sluice results ${id}` }
  const exit = await follow(invocation, id, after, extras)
  const ended = await batches.get(id)
  for (const line of await batchLines(batches, ended)) out.note(line)
  return exit === EXIT.ok ? batchExitCode(ended) : exit
}

function progressOf({ status, request_counts, progress }: BatchView): Progress {
  const { total, completed, failed } = request_counts
  const done = completed + failed
  const failures = failed > 0 ? `, ${failed} failed` : ''
  const rate = rateText(progress ?? {})
  const message = total > 0 ? `${done} of ${total} requests finished${failures}${rate && `, ${rate}`}` : null
  return { phase: status, percent: total > 0 ? (100 * done) / total : null, message }
}

function batchExitCode({ status }: BatchView): ExitCode {
  if (status === 'completed') return EXIT.ok
  return status === 'cancelled' ? EXIT.cancelled : EXIT.failed
}

/** Lines about an ended batch: its summary, its failed requests by error code, and the command for its results. */
export async function batchLines(batches: BatchesApi, batch: BatchView): Promise<string[]> {
  const { id, errors, request_counts, metadata } = batch
  const problems = (errors?.data ?? []).slice(0, ERRORS_SHOWN_MAX).map(({ line, message }) => {
    return plain(line == null ? message : `line ${line}: ${message}`)
  })
  // The result files may be deleted while the batch still exists.
  const failures = await failuresOf(batches, batch).catch((error: unknown) => {
    if (!isGone(error)) throw error
    return new Failures()
  })
  const hasResults = request_counts.completed + request_counts.failed > 0
  const results = `Results: sluice results ${id}${metadata?.[TABLE_FILE_KEY] === undefined ? '' : ' --csv'}`
  return [batchSummary(batch), ...failures.lines(), ...problems, ...(hasResults ? [results] : [])]
}

interface FollowView {
  event(event: JobEventView): Promise<void>
  reconnecting(reason: string, delayMs: number): void
  /** Shows the final state, even if the stream delivered no final event. */
  end(job: JobView): Promise<void>
  close(): void
}

const BAR_WIDTH = 24
const BAR_WIDTH_MIN = 8
const REDRAW_MS = 1_000

/** Opens a view: a progress bar with the output on a terminal, or one line of JSON per event otherwise. */
export function openFollowView(out: Output): FollowView {
  return out.isHumanReadable ? new TerminalView(out) : new JsonLinesView(out)
}

/** Prints one event per line. If the final event was not received, then the last line is the job itself. */
class JsonLinesView implements FollowView {
  readonly #out: Output
  #isFinalShown = false

  constructor(out: Output) {
    this.#out = out
  }

  async event(event: JobEventView): Promise<void> {
    this.#isFinalShown ||= isFinalEvent(event)
    await this.#out.json(event)
  }

  reconnecting(reason: string, delayMs: number): void {
    this.#out.note(reconnectLine(reason, delayMs))
  }

  async end(job: JobView): Promise<void> {
    if (!this.#isFinalShown) await this.#out.json(job)
  }

  close(): void {}
}

/**
 * The output text is written to stdout, and the progress bar to stderr. Both appear on one screen, so the bar is drawn
 * only while the cursor is at the start of a line.
 */
class TerminalView implements FollowView {
  readonly #out: Output
  /**
   * Start of the displayed elapsed time: the submission time if an event contained it, or else the start of following.
   */
  #sinceMs = Date.now()
  #untilMs: number | undefined
  readonly #timer: NodeJS.Timeout | undefined
  #label = 'connecting'
  #progress: Progress = {}
  #isAtLineStart = true
  #hasText = false
  #isDrawn = false

  constructor(out: Output) {
    this.#out = out
    if (out.canRedraw) this.#timer = setInterval(() => this.#draw(), REDRAW_MS).unref()
  }

  async event(event: JobEventView): Promise<void> {
    this.#updateTimes(event)
    const text = event.type === 'job.output.delta' ? textOf(event.chunk) : ''
    if (text) return await this.#write(printable(text))
    if (event.type === 'job.retrying') this.#retry(event)
    if (event.type === 'job.snapshot') this.#note('Earlier events of this job have expired.')
    this.#label = event.job?.status ?? LABELS[event.type] ?? this.#label
    if (event.queue) this.#label += queueText(event)
    this.#progress = event.progress ?? event.job?.progress ?? this.#progress
    this.#draw()
  }

  reconnecting(reason: string, delayMs: number): void {
    this.#note(reconnectLine(reason, delayMs))
  }

  async end(job: JobView): Promise<void> {
    this.close()
    if (!this.#hasText && job.status === 'completed') await this.#write(printable(resultText(job)))
    if (!this.#isAtLineStart) await this.#write('\n')
    for (const line of endLines(job)) this.#out.note(line)
  }

  close(): void {
    clearInterval(this.#timer)
    this.#erase()
  }

  /** Updates the start and the end of the displayed elapsed time. Both may be earlier than the time at which following began. */
  #updateTimes({ sequence_number, created_at, job }: JobEventView): void {
    const submittedAt = job?.created_at ?? (sequence_number === 1 ? created_at : undefined)
    if (submittedAt != null) this.#sinceMs = submittedAt * 1_000
    const until = job && endedAt(job)
    if (until !== undefined && until !== null) this.#untilMs = until * 1_000
  }

  #retry({ attempt, reason, delay_ms, output_reset }: JobEventView): void {
    const when = delay_ms ? ` in ${Math.ceil(delay_ms / 1_000)} s` : ''
    const reset = output_reset && this.#hasText ? '; the output above is discarded' : ''
    this.#note(`Attempt ${attempt ?? ''} failed${reason ? ` (${plain(reason)})` : ''}; retrying${when}${reset}.`)
    if (output_reset) this.#hasText = false
  }

  async #write(text: string): Promise<void> {
    if (text === '') return
    this.#erase()
    this.#hasText = true
    this.#isAtLineStart = text.endsWith('\n')
    await this.#out.write(text)
  }

  #note(line: string): void {
    this.#erase()
    this.#out.note(this.#isAtLineStart ? line : `\n${line}`)
    this.#isAtLineStart = true
  }

  #draw(): void {
    if (!this.#out.canRedraw || !this.#isAtLineStart) return
    // The time is at least 0, because the clock of the service may be ahead of this machine's clock.
    const seconds = Math.max(0, Math.floor(((this.#untilMs ?? Date.now()) - this.#sinceMs) / 1_000))
    this.#out.redraw(barLine(this.#label, this.#progress, seconds, this.#out.columns - 1))
    this.#isDrawn = true
  }

  #erase(): void {
    if (this.#isDrawn) this.#out.redraw('')
    this.#isDrawn = false
  }
}

const LABELS: Readonly<Record<string, string>> = {
  'job.queued': 'queued',
  'job.started': 'running',
  'job.progress': 'running',
  'job.retrying': 'waiting to retry',
  'job.cancelling': 'cancelling',
}

/**
 * Returns the progress line: `searching ████████░░░░ 40 % (12 s) Reading 3 of 8 sources`. If the line is too long, then
 * the bar is shortened first. Then the last parts of the message, which commas separate, are left out.
 */
export function barLine(
  label: string,
  { phase, percent, message }: Progress,
  seconds: number,
  columnsMax = Number.POSITIVE_INFINITY,
): string {
  const rest = [`(${seconds} s)`, ...(message ? [plain(message)] : [])]
  const name = plain(phase ?? label)
  if (typeof percent !== 'number') return [name, ...rest].join(' ').slice(0, columnsMax)
  const fraction = Math.min(Math.max(percent, 0), 100) / 100
  const lineOf = (width: number) => {
    const filled = Math.round(fraction * width)
    const bar = '█'.repeat(filled) + '░'.repeat(width - filled)
    return [name, bar, `${Math.round(fraction * 100)} %`, ...rest].join(' ')
  }
  const excess = Math.max(0, lineOf(BAR_WIDTH).length - columnsMax)
  const line = lineOf(Math.max(BAR_WIDTH_MIN, BAR_WIDTH - excess))
  const end = line.length > columnsMax ? line.lastIndexOf(', ', columnsMax) : -1
  return line.slice(0, end > 0 ? end : columnsMax)
}

function reconnectLine(reason: string, delayMs: number): string {
  return `Connection lost (${plain(reason)}); reconnecting in ${Math.ceil(delayMs / 1_000)} s.`
}

function endLines(job: JobView): string[] {
  if (job.status === 'completed') return [coloured('green', `${job.id} completed${statisticsOf(job)}`)]
  const reason = job.error ? `: ${plain(job.error.message)}${job.error.code ? ` (${plain(job.error.code)})` : ''}` : ''
  const line = coloured(
    exitCodeOf(job) === EXIT.cancelled ? 'yellow' : 'red',
    `${job.id} ${plain(job.status)}${reason}`,
  )
  return [line, `To run the job again: sluice redrive ${job.id}`]
}

/**
 * Returns tokens and times of a completed job: `, 12 input tokens, 40 output tokens, ran for 3 s after 1 s in the
 * queue`.
 */
function statisticsOf({ usage, created_at, started_at, completed_at }: JobView): string {
  const counted = Tokens.safeParse(usage).data
  const tokens = counted ? `, ${counted.in} input tokens, ${counted.out} output tokens` : ''
  if (started_at == null || completed_at == null) return tokens
  const waited = started_at - created_at
  return `${tokens}, ran for ${completed_at - started_at || '< 1'} s${waited > 0 ? ` after ${waited} s in the queue` : ''}`
}

/** Token counts under the field names of the Anthropic API or of the OpenAI API. */
const Tokens = z.union([
  z
    .object({ input_tokens: z.number(), output_tokens: z.number() })
    .transform((is) => ({ in: is.input_tokens, out: is.output_tokens })),
  z
    .object({ prompt_tokens: z.number(), completion_tokens: z.number() })
    .transform((is) => ({ in: is.prompt_tokens, out: is.completion_tokens })),
])
