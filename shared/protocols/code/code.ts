import type { CodeEvent, CodeResult } from '#schemas/code.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { ServiceError } from '#shared/error.ts'
import type { OutputRecorder } from '#shared/kinds/kind.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import { dataOf, type StreamEncoder } from '#shared/protocols/protocol.ts'
import { OUTPUT_BYTES_MAX, PLOTS_BYTES_MAX } from '#shared/sandbox/limits.ts'
import { CodeGather } from './gather.ts'

/** Characters of text at which two pieces stay apart; escaped six times as long, one still fits into a record. */
export const TEXT_PIECE_CHARS = 64 * 1024
/** Room for what a run says beside its output: messages of the service, the frames of its pieces. */
const MARGIN_BYTES = 2 * 1024 * 1024
/** Bytes that an answer may have: both streams, and the plots as base64. */
export const CODE_ANSWER_BYTES_MAX = 2 * OUTPUT_BYTES_MAX + Math.ceil(PLOTS_BYTES_MAX / 3) * 4 + MARGIN_BYTES

/** The whole answer of a run. @throws ServiceError `sandbox_lost` when the events are not those of a run that ended */
export function encodeCode(events: readonly CodeEvent[]): CodeResult {
  const gather = new CodeGather()
  for (const event of events) gather.push(event)
  return gather.result()
}

/** Joins text of one stream while it is short: a program that prints fast makes few records. */
export function mergeCodeEvents(previous: unknown, next: unknown): CodeEvent | undefined {
  const [a, b] = [previous as CodeEvent, next as CodeEvent]
  if (a.type !== 'output' || b.type !== 'output' || a.stream !== b.stream) return undefined
  if (a.piece.length + b.piece.length > TEXT_PIECE_CHARS) return undefined
  return { ...a, piece: a.piece + b.piece }
}

/** Whether a caller would see the event twice if the code ran again. */
export function isCodeOutput(delta: unknown): boolean {
  return (delta as CodeEvent).type !== 'end'
}

/** Records a durable run: the events of its stream, and its result. */
export function recordCode(_job: JobEnvelope): OutputRecorder {
  const encoder = new CodeStream()
  const objectsOf = (frames: string) => dataOf(frames).map((text) => JSON.parse(text) as unknown)
  return {
    event: (delta) => objectsOf(encoder.event(delta as CodeEvent)),
    end: () => objectsOf(encoder.end()),
    whole: (deltas) => encodeCode(deltas as CodeEvent[]),
  }
}

/**
 * Encodes one run as a stream: output as it comes, each plot when it is whole, then the whole result.
 *
 * Frames of `data:` only, as on every endpoint in the OpenAI format (docs/protocol.md, Event streams):
 * `code.output.delta`, `code.plot`, `code.completed`, and `[DONE]`.
 */
export class CodeStream implements StreamEncoder<CodeEvent> {
  readonly #gather = new CodeGather()

  event(event: CodeEvent): string {
    const plot = this.#gather.push(event)
    if (plot) return frame({ type: 'code.plot', plot })
    if (event.type !== 'output') return ''
    return frame({ type: 'code.output.delta', stream: event.stream, text: event.piece })
  }

  /** @throws ServiceError `sandbox_lost` when the run did not say how it ended */
  end(): string {
    return `${frame({ type: 'code.completed', result: this.#gather.result() })}data: [DONE]\n\n`
  }

  error(error: ServiceError): string {
    return frame(openaiErrorBody(error))
  }

  keepAlive(): string {
    return ': keep-alive\n\n'
  }
}

function frame(object: object): string {
  return `data: ${JSON.stringify(object)}\n\n`
}
