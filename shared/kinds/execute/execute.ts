import { type CodeEvent, type CodePlot, CodeRequest, type CodeResult } from '#schemas/code.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { OUTPUT_BYTES_MAX, PLOTS_BYTES_MAX } from '#shared/sandbox/limits.ts'

/** Maximum characters of merged text. Even if JSON escapes make the text six times as long, it fits into a record. */
export const TEXT_PIECE_CHARS = 64 * 1024
const MARGIN_BYTES = 2 * 1024 * 1024

export const execute: Kind<CodeRequest, CodeEvent> = {
  name: 'execute',
  pool: 'code',
  request: CodeRequest,
  // The text of both output streams, plus the plots as base64.
  answerBytesMax: 2 * OUTPUT_BYTES_MAX + Math.ceil(PLOTS_BYTES_MAX / 3) * 4 + MARGIN_BYTES,
  merge: mergeCodeEvents,
  // After such an event, a second run would send output twice. The end event is the last one, so no run follows it.
  isOutput: ({ type }) => type !== 'end',
  answer: () => codeAnswer,
}

/** Merges short texts of one output stream, so that a program that prints small pieces quickly produces few records. */
export function mergeCodeEvents(a: CodeEvent, b: CodeEvent): CodeEvent | undefined {
  if (a.type !== 'output' || b.type !== 'output' || a.stream !== b.stream) return undefined
  if (a.piece.length + b.piece.length > TEXT_PIECE_CHARS) return undefined
  return { ...a, piece: a.piece + b.piece }
}

/** The answer of `POST /v1/tools/code`. `whole` throws `sandbox_lost` if the run has no end event. */
const codeAnswer: Answer<CodeEvent> = {
  whole(events) {
    const gather = new CodeGather()
    for (const event of events) gather.push(event)
    return gather.result()
  },
  open: () => new CodeStream(),
}

/**
 * Streams one run: output as it arrives (`code.output.delta`), each plot when it is complete (`code.plot`), then the whole result
 * (`code.completed`).
 */
class CodeStream implements AnswerStream<CodeEvent> {
  readonly #gather = new CodeGather()

  push(event: CodeEvent): Frame[] {
    const plot = this.#gather.push(event)
    if (plot) return [frameOf({ type: 'code.plot', plot })]
    if (event.type !== 'output') return []
    return [frameOf({ type: 'code.output.delta', stream: event.stream, text: event.piece })]
  }

  /** @throws ServiceError `sandbox_lost` if the run has no end event */
  end(): Frame[] {
    return [frameOf({ type: 'code.completed', result: this.#gather.result() })]
  }
}

class CodeGather {
  readonly #text = { stdout: '', stderr: '' }
  readonly #plots: CodePlot[] = []
  #plot: string[] = []
  #end: Extract<CodeEvent, { type: 'end' }> | undefined

  /** Adds the next event. Returns the plot that the event completes, if any. */
  push(event: CodeEvent): CodePlot | undefined {
    if (event.type === 'output') this.#text[event.stream] += event.piece
    else if (event.type === 'end') this.#end = event
    else if (event.type === 'plot') return this.#pushPlot(event.piece, event.is_last)
    return undefined
  }

  /** The answer (docs/guides/code.md, The result). @throws ServiceError `sandbox_lost` if the run has no end event */
  result(): CodeResult {
    // Without an end event the output may be truncated, so it must not be returned as a result.
    if (!this.#end) throw new ServiceError('sandbox_lost', 'The sandbox stopped before the code finished. Try again.')
    const { success, exit_code, execution_time, violations } = this.#end
    const how = { exit_code, execution_time, security_checked: true, violations } as const
    return { success, ...this.#text, ...how, plots: this.#plots }
  }

  #pushPlot(piece: string, isLast: boolean): CodePlot | undefined {
    this.#plot.push(piece)
    if (!isLast) return undefined
    const filename = `plot_${this.#plots.length + 1}.png`
    const plot: CodePlot = { content_base64: this.#plot.join(''), format: 'png', filename }
    this.#plot = []
    this.#plots.push(plot)
    return plot
  }
}
