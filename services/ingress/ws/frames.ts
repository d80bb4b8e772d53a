import { ClientFrame, type ServerFrame } from '#schemas/ws.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { RETRY_MS_MAX } from '#services/ingress/reply/retry.ts'
import { HELD_PER_BYTE, HELD_PER_VALUE, type HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { readJson } from '#shared/json/read.ts'
import { refuseShape } from '#shared/json/shape.ts'
import { errorHeaders, openaiErrorBody } from '#shared/protocols/errors.ts'

/** A frame of a client: understood, or what is wrong with it, tied to an id if it would have begun one. */
export type ReadFrame =
  | { readonly frame: ClientFrame }
  | { readonly error: ServiceError; readonly id: string | undefined }

/** Frames that begin something, whose failure is that of their id. */
const BEGINNINGS: ReadonlySet<unknown> = new Set(['request.create', 'job.subscribe'])
const ID_CHARS_MAX = 64
/** Bytes of what is no JSON from which an excerpt is shown. */
const SHOWN_BYTES = 1_024

/**
 * Reads a frame, to be run by `runYielding` where it is large. Never throws: whatever a client sends is a frame or an error to
 * tell it.
 *
 * @param held What the frame holds of the memory, from then on.
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
  throw new ServiceError('invalid_request', 'The frame is no JSON object.')
}

/** The id that a frame meant to begin. */
function beginningOf(value: unknown): string | undefined {
  const { type, id } = (value ?? {}) as { type?: unknown; id?: unknown }
  const isId = typeof id === 'string' && id.length > 0 && id.length <= ID_CHARS_MAX
  return isId && BEGINNINGS.has(type) ? id.toWellFormed() : undefined
}

/** A frame as text. */
export function frameText(frame: ServerFrame): string {
  return JSON.stringify(frame)
}

/** `request.event` around a JSON text: runs for every token, so that nothing is parsed and written again. */
export function requestEventText(id: string, sequence: number, event: string): string {
  return `{"type":"request.event","id":${JSON.stringify(id)},"sequence_number":${sequence},"event":${event}}`
}

/** `job.event` around a JSON text. */
export function jobEventText(id: string, event: string): string {
  return `{"type":"job.event","id":${JSON.stringify(id)},"event":${event}}`
}

/** `request.completed` around the JSON text of a body. */
export function completedText(id: string, status: number, body: string): string {
  return `{"type":"request.completed","id":${JSON.stringify(id)},"status":${status},"body":${body}}`
}

/** `request.failed`: the error in the OpenAI format on every endpoint (docs/websocket.md, Frames). */
export function failedFrame(id: string, error: ServiceError): ServerFrame {
  const retryAfter = errorHeaders(error, false, RETRY_MS_MAX)['retry-after']
  const more = retryAfter === undefined ? {} : { retry_after: Number(retryAfter) }
  return { type: 'request.failed', id, status: error.status, error: openaiErrorBody(error).error, ...more }
}

/** `error`: a frame that belongs to no id. */
export function errorFrame(error: ServiceError): ServerFrame {
  return { type: 'error', error: openaiErrorBody(error).error }
}
