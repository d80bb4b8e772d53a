import type { GenerateEvent } from '#schemas/generate.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { MessagesStream } from './stream.ts'
import { encodeMessage } from './whole.ts'

/** The messages format (docs/protocol.md, Messages requests). */
export const messagesAnswer: Answer<GenerateEvent> = {
  whole: encodeMessage,
  open: (context) => new MessagesStream(context),
}
