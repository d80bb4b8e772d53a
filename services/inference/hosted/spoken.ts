import type { GenerateEvent } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { EventBuffer } from '#shared/jobs/event-buffer.ts'
import { STEP_BYTES_MAX } from '#shared/kinds/composition.ts'
import { mergeGenerateEvents } from '#shared/kinds/generate.ts'

/** Buffers the output of one round, within the size of a recorded step. */
export class Spoken {
  readonly #events = new EventBuffer(mergeGenerateEvents)
  #bytes = 0

  /** @throws ServiceError `answer_too_large` */
  push(event: GenerateEvent): void {
    this.#events.push(event)
    const hasOnlyText = 'text' in event && !(event.type === 'text' && event.logprobs)
    this.#bytes += bytesOf(hasOnlyText ? event.text : event)
    if (this.#bytes > STEP_BYTES_MAX) throw tooLarge()
  }

  /** @throws ServiceError `answer_too_large` */
  takeAll(): GenerateEvent[] {
    const events = this.#events.takeAll()
    if (bytesOf(events) > STEP_BYTES_MAX) throw tooLarge()
    return events
  }
}

function bytesOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value))
}

function tooLarge(): ServiceError {
  const message = `The model returned more than ${STEP_BYTES_MAX} bytes in one round of an answer with hosted tools. Set a lower 'max_output_tokens', or leave out log probabilities.`
  return new ServiceError('answer_too_large', message)
}
