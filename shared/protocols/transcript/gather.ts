import type { TokenLogprob, TranscribeEvent, TranscriptSegment } from '#schemas/transcription/transcription.ts'
import { unfinished } from '#shared/protocols/encode.ts'

/** All data of one transcript. Times are in seconds, rounded to milliseconds. */
export interface Transcript {
  readonly text: string
  /** In order of time. */
  readonly segments: readonly TranscriptSegment[]
  readonly logprobs: readonly TokenLogprob[]
  /** ISO-639-1, or empty. */
  readonly language: string
  readonly duration: number
  readonly usage: TranscriptUsage
}

/** Usage of a transcript in tokens (docs/internals/protocol.md, Transcript streams). */
export interface TranscriptUsage {
  input_tokens: number
  output_tokens: number
  total_tokens: number
  input_token_details: { audio_tokens: number; text_tokens: number }
}

type UsageEvent = Extract<TranscribeEvent, { type: 'usage' }>

/** Collects the events of one transcription. @throws ServiceError `upstream_error` if it did not finish */
export function gatherTranscript(events: readonly TranscribeEvent[]): Transcript {
  const segments: TranscriptSegment[] = []
  const logprobs: TokenLogprob[] = []
  let text = ''
  let start = { language: '', duration: 0 }
  let usage: UsageEvent['usage'] | undefined
  let isFinished = false
  for (const event of events) {
    if (event.type === 'start') start = event
    else if (event.type === 'segment') segments.push(event.segment)
    else if (event.type === 'usage') usage = event.usage
    else if (event.type === 'finish') isFinished = true
    else {
      text += event.text
      for (const logprob of event.logprobs ?? []) logprobs.push(logprob)
    }
  }
  if (!isFinished) throw unfinished()
  const duration = toMilliseconds(start.duration)
  return {
    text: text.toWellFormed().trim(),
    segments: segments.map(soundSegment),
    logprobs,
    language: start.language,
    duration,
    usage: usageOf(usage),
  }
}

/** An engine's usage in the wire form; zeros if the engine reported none. */
export function usageOf(usage: UsageEvent['usage'] | undefined): TranscriptUsage {
  const { input_tokens, output_tokens } = usage ?? { input_tokens: 0, output_tokens: 0 }
  return {
    input_tokens,
    output_tokens,
    total_tokens: input_tokens + output_tokens,
    input_token_details: usage?.input_token_details ?? { audio_tokens: input_tokens, text_tokens: 0 },
  }
}

/** Repairs a segment for output: finite numbers only, no end before its start, no lone surrogates. */
export function soundSegment(segment: TranscriptSegment): TranscriptSegment {
  const start = toMilliseconds(segment.start)
  return {
    ...segment,
    start,
    end: Math.max(start, toMilliseconds(segment.end)),
    text: segment.text.toWellFormed(),
    temperature: finite(segment.temperature),
    avg_logprob: finite(segment.avg_logprob),
    compression_ratio: finite(segment.compression_ratio),
    no_speech_prob: finite(segment.no_speech_prob),
  }
}

/** Rounds to milliseconds, because engines add floats: 2.7100000000000004 becomes 2.71. */
export function toMilliseconds(seconds: number): number {
  return Math.round(Math.max(0, finite(seconds)) * 1_000) / 1_000
}

function finite(value: number | null): number {
  return Number.isFinite(value) ? (value as number) : 0
}
