import { z } from 'zod'
import {
  beforeIt,
  endedAt,
  exitOf,
  isLast,
  type JobEventView,
  type JobView,
  type Progress,
} from '#services/cli/client/job.ts'
import { EXIT } from '#services/cli/failure.ts'
import { resultText, textOf } from './job-text.ts'
import { coloured, type Output, plain, printable } from './output.ts'

/** Shows a job's events as they come. */
export interface FollowView {
  event(event: JobEventView): Promise<void>
  cut(why: string, delayMs: number): void
  /** The last word about a job, also where no event told it. */
  end(job: JobView): Promise<void>
  /** Takes the bar away, whatever happened. Tolerates a second call. */
  close(): void
}

const BAR_WIDTH = 24
const REDRAW_MS = 1_000

/** The view for who reads the output: a bar and the text for people, the events as they are for programs. */
export function openFollowView(out: Output): FollowView {
  return out.isForPeople ? new PeopleView(out) : new LinesView(out)
}

/** Each event on a line; where none was left to come, the job. */
class LinesView implements FollowView {
  readonly #out: Output
  #isTold = false

  constructor(out: Output) {
    this.#out = out
  }

  async event(event: JobEventView): Promise<void> {
    this.#isTold ||= isLast(event)
    await this.#out.json(event)
  }

  cut(why: string, delayMs: number): void {
    this.#out.note(cutLine(why, delayMs))
  }

  async end(job: JobView): Promise<void> {
    if (!this.#isTold) await this.#out.json(job)
  }

  close(): void {}
}

/**
 * Text of the output on the output stream; below it, on the error stream, a bar that is drawn again. Both are the same
 * screen, so the bar is only drawn where a line begins.
 */
class PeopleView implements FollowView {
  readonly #out: Output
  /** Since when the bar counts: the submit of the job, as soon as an event tells it. */
  #sinceMs = Date.now()
  /** The end of the job; undefined while it goes on. */
  #untilMs: number | undefined
  readonly #timer: NodeJS.Timeout | undefined
  #label = 'connecting'
  #progress: Progress = {}
  #isAtLineStart = true
  #hasText = false
  #isDrawn = false

  constructor(out: Output) {
    this.#out = out
    // The seconds go on while nothing happens.
    if (out.canRedraw) this.#timer = setInterval(() => this.#draw(), REDRAW_MS).unref()
  }

  async event(event: JobEventView): Promise<void> {
    this.#time(event)
    const text = event.type === 'job.output.delta' ? textOf(event.chunk) : ''
    if (text) return await this.#write(printable(text))
    if (event.type === 'job.retrying') this.#retry(event)
    if (event.type === 'job.snapshot') this.#note('Its earlier events are no longer kept.')
    this.#label = event.job?.status ?? LABELS[event.type] ?? this.#label
    if (event.queue) this.#label += beforeIt(event)
    this.#progress = event.progress ?? event.job?.progress ?? this.#progress
    this.#draw()
  }

  cut(why: string, delayMs: number): void {
    this.#note(cutLine(why, delayMs))
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

  /** A follower may come long after the submit, and after the end. */
  #time({ sequence_number, created_at, job }: JobEventView): void {
    const submittedAt = job?.created_at ?? (sequence_number === 1 ? created_at : undefined)
    if (submittedAt != null) this.#sinceMs = submittedAt * 1_000
    const until = job && endedAt(job)
    if (until !== undefined && until !== null) this.#untilMs = until * 1_000
  }

  #retry({ attempt, reason, delay_ms, output_reset }: JobEventView): void {
    const when = delay_ms ? ` again in ${Math.ceil(delay_ms / 1_000)} s` : ' again'
    const reset = output_reset && this.#hasText ? '; the text above does not count' : ''
    this.#note(`Attempt ${attempt ?? ''} did not finish${reason ? ` (${plain(reason)})` : ''}: runs${when}${reset}.`)
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
    // The clock of the service may be ahead of this one.
    const seconds = Math.max(0, Math.floor(((this.#untilMs ?? Date.now()) - this.#sinceMs) / 1_000))
    this.#out.redraw(barLine(this.#label, this.#progress, seconds).slice(0, this.#out.columns - 1))
    this.#isDrawn = true
  }

  #erase(): void {
    if (this.#isDrawn) this.#out.redraw('')
    this.#isDrawn = false
  }
}

/** What an event without a job says about its state. */
const LABELS: Readonly<Record<string, string>> = {
  'job.queued': 'queued',
  'job.started': 'running',
  'job.progress': 'running',
  'job.retrying': 'waiting to run again',
  'job.cancelling': 'cancelling',
}

/** Where a job stands, on one line: `searching ████████░░░░ 40 % (12 s) Reading 3 of 8 sources`. */
export function barLine(label: string, { phase, percent, message }: Progress, seconds: number): string {
  const parts = [plain(phase ?? label)]
  if (typeof percent === 'number') {
    const share = Math.min(Math.max(percent, 0), 100) / 100
    const filled = Math.round(share * BAR_WIDTH)
    parts.push(`${'█'.repeat(filled)}${'░'.repeat(BAR_WIDTH - filled)} ${Math.round(share * 100)} %`)
  }
  parts.push(`(${seconds} s)`)
  // Last, because a narrow terminal cuts it off.
  if (message) parts.push(plain(message))
  return parts.join(' ')
}

function cutLine(why: string, delayMs: number): string {
  return `Connection lost (${plain(why)}); trying again in ${Math.ceil(delayMs / 1_000)} s.`
}

/** How a job ended, and what to do next. */
function endLines(job: JobView): string[] {
  if (job.status === 'completed') return [coloured('green', `${job.id} completed${costOf(job)}`)]
  const why = job.error ? `: ${plain(job.error.message)}${job.error.code ? ` (${plain(job.error.code)})` : ''}` : ''
  const line = coloured(exitOf(job) === EXIT.cancelled ? 'yellow' : 'red', `${job.id} ${plain(job.status)}${why}`)
  return [line, `Run it again: sluice redrive ${job.id}`]
}

/** What a completed job took: `, 12 tokens in, 40 out, ran 3 s after a wait of 1 s`. */
function costOf({ usage, created_at, started_at, completed_at }: JobView): string {
  const counted = Tokens.safeParse(usage).data
  const tokens = counted ? `, ${counted.in} tokens in, ${counted.out} out` : ''
  if (started_at == null || completed_at == null) return tokens
  const waited = started_at - created_at
  return `${tokens}, ran ${completed_at - started_at || '< 1'} s${waited > 0 ? ` after a wait of ${waited} s` : ''}`
}

/** The names of both dialects. */
const Tokens = z.union([
  z
    .object({ input_tokens: z.number(), output_tokens: z.number() })
    .transform((is) => ({ in: is.input_tokens, out: is.output_tokens })),
  z
    .object({ prompt_tokens: z.number(), completion_tokens: z.number() })
    .transform((is) => ({ in: is.prompt_tokens, out: is.completion_tokens })),
])
