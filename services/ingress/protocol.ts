import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { ServiceError } from '#shared/error.ts'

/**
 * A wire protocol of text generation, seen from the ingress: decode a body into the internal request, encode internal
 * events into the protocol's whole answer or its stream. Chat completions and messages are the two there are.
 */
export interface Protocol {
  /**
   * Checks a parsed JSON body and turns it into the internal request. Does no I/O.
   *
   * @throws ServiceError with `param` set to the path of the first problem (contract A.2, A.3)
   */
  decode(body: unknown, context: DecodeContext): GenerateRequest
  /** The whole answer, from all events of the call. */
  encodeWhole(events: readonly GenerateEvent[], context: EncodeContext): unknown
  /** Opens the encoder of one stream. */
  openStream(context: EncodeContext): StreamEncoder
}

/** What decoding needs to know about the service. */
export interface DecodeContext {
  /** Finds a model by id or alias. @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported` */
  readonly getModel: (id: string) => ModelConfig
  /** Messages format: refuse turns that do not alternate (contract C.3). */
  readonly strictTurns: boolean
  /** Remote image URLs are allowed (contract B.2); data: URLs always are. */
  readonly remoteImages: boolean
}

/** What encoding needs to know about the call. */
export interface EncodeContext {
  readonly requestId: string
  /** Part of the completion's id after its prefix: unique, URL-safe. */
  readonly callId: string
  readonly createdSeconds: number
  readonly request: GenerateRequest
  /** Chat: the caller set stream_options.include_usage. */
  readonly includeUsage: boolean
  /** Messages: the date of anthropic-version, which picks the dialect (contract C.1). */
  readonly version: string
}

/** Encodes one stream. Each call gives the text to write, frames and blank lines included, possibly empty. */
export interface StreamEncoder {
  /** Frames for the next event. Events come in the order of schemas/generate.ts. */
  event(event: GenerateEvent): string
  /** Frames that end a good stream; after the last event. */
  end(): string
  /** Frames that end a failed stream (contract A.4). */
  error(error: ServiceError): string
  /** What to write after 15 s of silence. */
  keepAlive(): string
}
