import { ChatStream } from './chat/stream.ts'
import { encodeChat } from './chat/whole.ts'
import { MessagesStream } from './messages/stream.ts'
import { encodeMessage } from './messages/whole.ts'
import type { OutputEncoding } from './protocol.ts'

/** Chat completions (docs/protocol.md, Chat requests). */
export const chatEncoding: OutputEncoding = {
  encodeWhole: encodeChat,
  openStream: (context) => new ChatStream(context),
}

/** The messages format (docs/protocol.md, Messages requests). */
export const messagesEncoding: OutputEncoding = {
  encodeWhole: encodeMessage,
  openStream: (context) => new MessagesStream(context),
}
