import { decodeChat } from './chat-decode.ts'
import { ChatStream } from './chat-stream.ts'
import { encodeChat } from './chat-whole.ts'
import type { Protocol } from './protocol.ts'

/** Chat completions: `POST /v1/chat/completions` (contract B). */
export const chatProtocol: Protocol = {
  decode: decodeChat,
  encodeWhole: encodeChat,
  openStream: (context) => new ChatStream(context),
}
