import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Pieces } from '#services/ingress/body/pieces.ts'
import type { OutputEncoding } from '#shared/protocols/protocol.ts'

/** A wire protocol of text generation, seen from the ingress. Chat completions and messages are the two there are. */
export interface Protocol extends OutputEncoding {
  /**
   * Checks a parsed JSON body and turns it into the internal request, in pieces. Does no I/O.
   *
   * @throws ServiceError with `param` set to the path of the first problem (docs/protocol.md, Errors)
   */
  decode(body: unknown, context: DecodeContext): Pieces<GenerateRequest>
}

/** What decoding needs to know about the service. */
export interface DecodeContext {
  /** Finds a model by id or alias. @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported` */
  readonly getModel: (id: string) => ModelConfig
  /** Messages format: refuse turns that do not alternate (docs/protocol.md, Turns and blocks). */
  readonly strictTurns: boolean
  /** Remote image URLs are allowed (docs/protocol.md, Chat messages); data: URLs always are. */
  readonly remoteImages: boolean
}
