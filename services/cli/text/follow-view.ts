import { z } from 'zod'
import {
  endedAt,
  exitCodeOf,
  isFinalEvent,
  type JobEventView,
  type JobView,
  type Progress,
  queueText,
} from '#services/cli/client/job.ts'
import { EXIT } from '#services/cli/failure.ts'
import { resultText, textOf } from './job-text.ts'
import { coloured, type Output, plain, printable } from './output.ts'

export interface FollowView {
  event(event: JobEventView): Promise<void>
  reconnecting(reason: string, delayMs: number): void
  /** Shows the final state, even if the stream delivered no final event. */
  end(job: JobView): Promise<void>
  /** Removes the progress bar. Idempotent. */
  close(): void
}

const BAR_WIDTH = 24
const REDRAW_MS = 1_000

/** A progress bar with the output on a terminal; otherwise one line of JSON per event. */
export function openFollowView(out: Output): FollowView {
  return out.isHumanReadable ? new TerminalView(out) : new JsonLinesView(out)
}

/** One event per line. If the final event was not received, the last line is the job. */
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
 * Output text goes to stdout and the progress bar to stderr. Both share one screen, so the bar is drawn only while the cursor is
 * at the start of a line.
 */
class TerminalView implements FollowView {
  readonly #out: Output
  /** Start of the elapsed time: the submission, once an event contains it. */
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
    // Redraws the elapsed time between events.
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

  /** Sets submission and end from the event, because following may begin long after the submission or the end. */
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
    // At least 0, because the clock of the service may be ahead of this machine's clock.
    const seconds = Math.max(0, Math.floor(((this.#untilMs ?? Date.now()) - this.#sinceMs) / 1_000))
    this.#out.redraw(barLine(this.#label, this.#progress, seconds).slice(0, this.#out.columns - 1))
    this.#isDrawn = true
  }

  #erase(): void {
    if (this.#isDrawn) this.#out.redraw('')
    this.#isDrawn = false
  }
}

/** Labels for events that contain no job. */
const LABELS: Readonly<Record<string, string>> = {
  'job.queued': 'queued',
  'job.started': 'running',
  'job.progress': 'running',
  'job.retrying': 'waiting to retry',
  'job.cancelling': 'cancelling',
}

/** The progress line: `searching ████████░░░░ 40 % (12 s) Reading 3 of 8 sources`. */
export function barLine(label: string, { phase, percent, message }: Progress, seconds: number): string {
  const parts = [plain(phase ?? label)]
  if (typeof percent === 'number') {
    const fraction = Math.min(Math.max(percent, 0), 100) / 100
    const filled = Math.round(fraction * BAR_WIDTH)
    parts.push(`${'█'.repeat(filled)}${'░'.repeat(BAR_WIDTH - filled)} ${Math.round(fraction * 100)} %`)
  }
  parts.push(`(${seconds} s)`)
  // The message is the last part, because a narrow terminal cuts off the end of the line.
  if (message) parts.push(plain(message))
  return parts.join(' ')
}

function reconnectLine(reason: string, delayMs: number): string {
  return `Connection lost (${plain(reason)}); reconnecting in ${Math.ceil(delayMs / 1_000)} s.`
}

function endLines(job: JobView): string[] {
  if (job.status === 'completed') return [coloured('green', `${job.id} completed${costOf(job)}`)]
  const reason = job.error ? `: ${plain(job.error.message)}${job.error.code ? ` (${plain(job.error.code)})` : ''}` : ''
  const line = coloured(
    exitCodeOf(job) === EXIT.cancelled ? 'yellow' : 'red',
    `${job.id} ${plain(job.status)}${reason}`,
  )
  return [line, `To run the job again: sluice redrive ${job.id}`]
}

/** Tokens and times of a completed job: `, 12 input tokens, 40 output tokens, ran for 3 s after 1 s in the queue`. */
function costOf({ usage, created_at, started_at, completed_at }: JobView): string {
  const counted = Tokens.safeParse(usage).data
  const tokens = counted ? `, ${counted.in} input tokens, ${counted.out} output tokens` : ''
  if (started_at == null || completed_at == null) return tokens
  const waited = started_at - created_at
  return `${tokens}, ran for ${completed_at - started_at || '< 1'} s${waited > 0 ? ` after ${waited} s in the queue` : ''}`
}

/** Field names of the Anthropic and the OpenAI API. */
const Tokens = z.union([
  z
    .object({ input_tokens: z.number(), output_tokens: z.number() })
    .transform((is) => ({ in: is.input_tokens, out: is.output_tokens })),
  z
    .object({ prompt_tokens: z.number(), completion_tokens: z.number() })
    .transform((is) => ({ in: is.prompt_tokens, out: is.completion_tokens })),
])
