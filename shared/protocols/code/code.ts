import type { CodeEvent } from '#schemas/code.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { CodeGather } from './gather.ts'

/** A run as `POST /v1/tools/code` says it. Whole: throws `sandbox_lost` when the events are not those of a run that ended. */
export const codeAnswer: Answer<CodeEvent> = {
  whole(events) {
    const gather = new CodeGather()
    for (const event of events) gather.push(event)
    return gather.result()
  },
  open: () => new CodeStream(),
}

/**
 * One run as a stream: output as it comes (`code.output.delta`), each plot when it is whole (`code.plot`), then the whole
 * result (`code.completed`).
 */
class CodeStream implements AnswerStream<CodeEvent> {
  readonly #gather = new CodeGather()

  push(event: CodeEvent): Frame[] {
    const plot = this.#gather.push(event)
    if (plot) return [frame({ type: 'code.plot', plot })]
    if (event.type !== 'output') return []
    return [frame({ type: 'code.output.delta', stream: event.stream, text: event.piece })]
  }

  /** @throws ServiceError `sandbox_lost` when the run did not say how it ended */
  end(): Frame[] {
    return [frame({ type: 'code.completed', result: this.#gather.result() })]
  }
}

function frame(object: object): Frame {
  return { data: JSON.stringify(object) }
}
