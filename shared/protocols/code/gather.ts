import type { CodeEvent, CodePlot, CodeResult } from '#schemas/code.ts'
import { ServiceError } from '#shared/error.ts'

/** Puts the pieces of one run together again. */
export class CodeGather {
  readonly #text = { stdout: '', stderr: '' }
  readonly #plots: CodePlot[] = []
  #plot: string[] = []
  #end: Extract<CodeEvent, { type: 'end' }> | undefined

  /** Takes the next event. Gives the plot that became whole by it. */
  push(event: CodeEvent): CodePlot | undefined {
    if (event.type === 'output') this.#text[event.stream] += event.piece
    else if (event.type === 'end') this.#end = event
    else if (event.type === 'plot') return this.#pushPlot(event.piece, event.is_last)
    return undefined
  }

  /** The answer (docs/code.md, The result). @throws ServiceError `sandbox_lost` when the run did not say how it ended */
  result(): CodeResult {
    if (!this.#end) throw unfinishedRun()
    const { success, exit_code, execution_time, violations } = this.#end
    return {
      success,
      ...this.#text,
      exit_code,
      execution_time,
      security_checked: true,
      violations,
      plots: this.#plots,
    }
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

/** A run that fell silent: what it printed may be cut, so it must not look like a result. */
export function unfinishedRun(): ServiceError {
  return new ServiceError('sandbox_lost', 'The sandbox was lost before the run ended.')
}
