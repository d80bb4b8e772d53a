import type { EncodeContext } from '#schemas/job.ts'
import type { CountTokensResult, GenerateEvent } from '#schemas/kinds/generate.ts'
import type { ResponseObject } from '#schemas/responses/response.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import type { ItemEvent } from './items.ts'
import { ResponseOutput, responsesError } from './output.ts'

export const responsesAnswer: Answer<GenerateEvent> = {
  whole: (events, context) => runNowOrYielding(responseIn(events, context)),
  open: (context) => new ResponsesStream(context),
}

function* responseIn(events: readonly GenerateEvent[], context: EncodeContext): Generator<undefined, ResponseObject> {
  const output = new ResponseOutput(context)
  for (const event of events) {
    output.push([], event)
    yield
  }
  return output.ended()
}

export function inputTokensOf({ input_tokens }: CountTokensResult): object {
  return { object: 'response.input_tokens', input_tokens }
}

/**
 * Makes a frame of the stream. The event name of a frame equals the type of its event.
 *
 * @param sequence_number Replaces a sequence number that the event may already have
 */
export function responsesFrame(event: ItemEvent, sequence_number: number): Frame {
  const { type, ...fields } = event
  return frameOf({ type, ...fields, sequence_number }, { event: type })
}

export function endOf(response: ResponseObject): ItemEvent {
  return { type: `response.${ENDS[response.status] ?? 'failed'}`, response }
}

/**
 * Suffix of the name of the stream's last event, by status of the response. A cancelled response has no last event of its own in the API.
 * The stream of a cancelled response ends with `response.failed`, whose response has the status `cancelled`.
 */
const ENDS: Partial<Record<ResponseObject['status'], string>> = { completed: 'completed', incomplete: 'incomplete' }

/**
 * Encodes one stream: typed events with sequence numbers from 0 (docs/guides/responses.md, Streams). If the response is stored, then
 * services/ingress/endpoints/responses/stored.ts adds the first and the last event instead of this class.
 */
class ResponsesStream implements AnswerStream<GenerateEvent> {
  readonly #output: ResponseOutput
  readonly #isKept: boolean
  #sequence = 0

  constructor(context: EncodeContext) {
    this.#isKept = context.responses?.is_kept ?? false
    this.#output = new ResponseOutput(context)
  }

  push(event: GenerateEvent): Frame[] {
    const isFirst = this.#sequence === 0
    const out: ItemEvent[] = []
    this.#output.push(out, event)
    if (isFirst) {
      const response = this.#output.inProgress
      out.unshift({ type: 'response.in_progress', response })
      if (!this.#isKept) out.unshift({ type: 'response.created', response })
    }
    return this.#number(out)
  }

  end(): Frame[] {
    const end = endOf(this.#output.ended())
    return this.#isKept ? [] : this.#number([end])
  }

  failed(error: ServiceError): Frame {
    const { items, inProgress } = this.#output
    const response: ResponseObject = { ...inProgress, status: 'failed', error: responsesError(error), output: items }
    return responsesFrame(endOf(response), this.#sequence)
  }

  #number(events: readonly ItemEvent[]): Frame[] {
    return events.map((event) => responsesFrame(event, this.#sequence++))
  }
}
