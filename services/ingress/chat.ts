import { chatEncoding } from '#shared/protocols/protocols.ts'
import { decodeChat } from './chat-decode.ts'
import type { Protocol } from './protocol.ts'

/** Chat completions: `POST /v1/chat/completions` (contract B). */
export const chatProtocol: Protocol = {
  ...chatEncoding,
  decode: decodeChat,
}
