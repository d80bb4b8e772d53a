import { type CodeEvent, type CodePlot, CodeRequest, type CodeResult } from '#schemas/kinds/code.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { OUTPUT_BYTES_MAX, PLOTS_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'

/**
 * Maximum characters of merged text. A JSON escape makes a character up to six times as long. Six times this maximum still fits into a queue record.
 */
export const TEXT_PIECE_CHARS = 64 * 1024
const MARGIN_BYTES = 2 * 1024 * 1024

export const execute: Kind<CodeRequest, CodeEvent> = {
  name: 'execute',
  pool: 'code',
  request: CodeRequest,
  // An answer contains stdout and stderr, each with its maximum size, and plots as base64.
  answerBytesMax: 2 * OUTPUT_BYTES_MAX + Math.ceil(PLOTS_BYTES_MAX / 3) * 4 + MARGIN_BYTES,
  merge: mergeCodeEvents,
  // A job is not retried after output, because the caller would receive that output twice. The event `end` is the last one, so no retry can follow
  // and it need not count as output.
  isOutput: ({ type }) => type !== 'end',
  answer: () => codeAnswer,
}

/** Merges short texts of the same output stream. Otherwise a program that prints many small pieces would create a queue record for each of them. */
export function mergeCodeEvents(a: CodeEvent, b: CodeEvent): CodeEvent | undefined {
  if (a.type !== 'output' || b.type !== 'output' || a.stream !== b.stream) return undefined
  if (a.piece.length + b.piece.length > TEXT_PIECE_CHARS) return undefined
  return { ...a, piece: a.piece + b.piece }
}

const codeAnswer: Answer<CodeEvent> = {
  whole(events) {
    const gather = new CodeGather()
    for (const event of events) gather.push(event)
    return gather.result()
  },
  open: () => new CodeStream(),
}

/**
 * Streams one run. Text is sent as it arrives (`code.output.delta`), each plot when its last piece has arrived (`code.plot`), and the whole result at
 * the end (`code.completed`).
 */
class CodeStream implements AnswerStream<CodeEvent> {
  readonly #gather = new CodeGather()

  push(event: CodeEvent): Frame[] {
    const plot = this.#gather.push(event)
    if (plot) return [frameOf({ type: 'code.plot', plot })]
    if (event.type !== 'output') return []
    return [frameOf({ type: 'code.output.delta', stream: event.stream, text: event.piece })]
  }

  end(): Frame[] {
    return [frameOf({ type: 'code.completed', result: this.#gather.result() })]
  }
}

class CodeGather {
  readonly #text = { stdout: '', stderr: '' }
  readonly #plots: CodePlot[] = []
  #plot: string[] = []
  #end: Extract<CodeEvent, { type: 'end' }> | undefined

  /** Adds the next event. Returns a plot if the event contains the last piece of a plot. */
  push(event: CodeEvent): CodePlot | undefined {
    if (event.type === 'output') this.#text[event.stream] += event.piece
    else if (event.type === 'end') this.#end = event
    else if (event.type === 'plot') return this.#pushPlot(event.piece, event.is_last)
    return undefined
  }

  result(): CodeResult {
    if (!this.#end) throw new ServiceError('sandbox_lost', 'The sandbox stopped before the code finished.')
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
