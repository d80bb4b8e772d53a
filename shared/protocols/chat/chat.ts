import type { GenerateEvent } from '#schemas/generate.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { ChatStream } from './stream.ts'
import { encodeChat } from './whole.ts'

/** Chat completions (docs/protocol.md, Chat requests). */
export const chatAnswer: Answer<GenerateEvent> = {
  whole: encodeChat,
  open: (context) => new ChatStream(context),
}
