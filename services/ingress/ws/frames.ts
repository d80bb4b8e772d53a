import { ClientFrame, type ServerFrame } from '#schemas/ws.ts'
import { CLIENT_RETRY_AFTER_MS_MAX } from '#services/ingress/body/errors.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { HELD_PER_BYTE, HELD_PER_VALUE, type HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { readJson } from '#shared/json/read.ts'
import { refuseShape } from '#shared/json/shape.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { errorHeaders, openaiErrorBody } from '#shared/protocols/errors.ts'

/**
 * Result of reading a frame of the client: the frame, or an error. The error has an id if the frame would have started
 * a request with that id.
 */
export type ReadFrame =
  | { readonly frame: ClientFrame }
  | { readonly error: ServiceError; readonly id: string | undefined }

/**
 * Frame types that start a request or subscription under a new id. An error in such a frame is reported for that id.
 */
const BEGINNINGS: ReadonlySet<unknown> = new Set(['request.create', 'job.subscribe'])
const ID_CHARS_MAX = 64
/** Maximum bytes of invalid JSON that an error message quotes. */
const SHOWN_BYTES = 1_024

/**
 * Reads a frame. A large frame must be read with `runYielding`. Errors are returned, never thrown.
 *
 * @param held Memory reservation of the frame; grows here by the size of the parsed values
 */
export function* readFrame(data: Buffer, isBinary: boolean, held: HeldBytes): Generator<undefined, ReadFrame> {
  let value: unknown
  try {
    if (isBinary) throw new ServiceError('invalid_request', 'Frames must be text: one JSON object each.')
    const values = yield* refuseShape(data)
    value = yield* parse(data)
    held.hold(data.length * HELD_PER_BYTE + values * HELD_PER_VALUE)
    return { frame: parseBody(ClientFrame, value, 'openai') }
  } catch (error) {
    return { error: ServiceError.from(error), id: beginningOf(value) }
  }
}

function* parse(data: Buffer): Generator<undefined, object> {
  let value: unknown
  try {
    value = yield* readJson(data)
  } catch (cause) {
    const shown = excerpt(data.toString('utf8', 0, SHOWN_BYTES))
    throw new ServiceError('invalid_request', `The frame is not JSON: ${shown}`, { cause })
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
  throw new ServiceError('invalid_request', 'The frame is not a JSON object.')
}

/** Id of a frame that would start a request; undefined if there is none. */
function beginningOf(value: unknown): string | undefined {
  const { type, id } = (value ?? {}) as { type?: unknown; id?: unknown }
  const isId = typeof id === 'string' && id.length > 0 && id.length <= ID_CHARS_MAX
  return isId && BEGINNINGS.has(type) ? id.toWellFormed() : undefined
}

export function frameText(frame: ServerFrame): string {
  return JSON.stringify(frame)
}

/** Frame `request.event` with an event in JSON text. Runs once per token, so the text is inserted without parsing. */
export function requestEventText(id: string, sequence: number, event: string): string {
  return `{"type":"request.event","id":${JSON.stringify(id)},"sequence_number":${sequence},"event":${event}}`
}

/** Frame `job.event` with an event in JSON text. */
export function jobEventText(id: string, event: string): string {
  return `{"type":"job.event","id":${JSON.stringify(id)},"event":${event}}`
}

/** Frame `request.completed` with a body in JSON text. */
export function completedText(id: string, status: number, body: string): string {
  return `{"type":"request.completed","id":${JSON.stringify(id)},"status":${status},"body":${body}}`
}

/** Frame `request.failed`, with an error in the OpenAI format on every endpoint (docs/guides/websocket.md, Frames). */
export function failedFrame(id: string, error: ServiceError): ServerFrame {
  const retryAfter = errorHeaders(error, false, CLIENT_RETRY_AFTER_MS_MAX)['retry-after']
  const more = retryAfter === undefined ? {} : { retry_after: Number(retryAfter) }
  return { type: 'request.failed', id, status: error.status, error: openaiErrorBody(error).error, ...more }
}

/** Frame `error`, for a problem that belongs to no request. */
export function errorFrame(error: ServiceError): ServerFrame {
  return { type: 'error', error: openaiErrorBody(error).error }
}
