import type { Protocol } from '#services/ingress/endpoints/protocol.ts'
import { chatEncoding } from '#shared/protocols/protocols.ts'
import { decodeChat } from './decode.ts'

/** Chat completions: `POST /v1/chat/completions` (docs/protocol.md, Chat requests). */
export const chatProtocol: Protocol = {
  ...chatEncoding,
  decode: decodeChat,
}
