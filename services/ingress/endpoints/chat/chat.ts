import type { Protocol } from '#services/ingress/endpoints/protocol.ts'
import { chatEncoding } from '#shared/protocols/protocols.ts'
import { decodeChat } from './decode.ts'

/** Chat completions: `POST /v1/chat/completions` (contract B). */
export const chatProtocol: Protocol = {
  ...chatEncoding,
  decode: decodeChat,
}
