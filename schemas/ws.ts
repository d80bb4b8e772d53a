import { z } from 'zod'
import { JobFields, Webhook } from './jobs.ts'

/**
 * Frames of `GET /v1/ws`, subprotocol `inference.v1` (docs/guides/websocket.md, Frames). Each frame is a text message with one JSON object. The id of
 * a request must differ from the ids of subscriptions, because frames refer to both by id. The last frame of each id is one of `request.completed`,
 * `request.failed` and `request.cancelled`.
 */
export const WS_PROTOCOL = 'inference.v1'

/** Close codes of the server (RFC 6455 §7.4). Codes from 4400 are specific to Sluice. */
export const WS_CLOSE = {
  restart: 1012,
  overloaded: 1013,
  malformed: 4400,
  keyRevoked: 4401,
  idle: 4408,
  duplicateId: 4409,
  tooManyConnections: 4429,
} as const

const ExchangeId = z
  .string()
  .min(1)
  .max(64)
  .describe('Client-chosen id, unique among active requests and subscriptions')

const CreateRequest = z.object({
  type: z.literal('request.create'),
  id: ExchangeId,
  endpoint: z.string().describe('Path of the endpoint to call, such as /v1/chat/completions'),
  body: z.looseObject({}).describe('Body of the call. Default of stream: true'),
  idempotency_key: z
    .string()
    .nullish()
    .describe('Makes the request durable. Same effect as the HTTP header Idempotency-Key'),
  ...JobFields.shape,
  webhook: Webhook.loose().nullish().describe('Unknown fields are rejected, as in POST /v1/jobs'),
})
export type CreateRequest = z.infer<typeof CreateRequest>

const SubscribeJob = z.object({
  type: z.literal('job.subscribe'),
  id: ExchangeId,
  job_id: z.string(),
  starting_after: z
    .int()
    .min(0)
    .nullish()
    .describe('Sequence number of the last event received. Default: from the start'),
})
export type SubscribeJob = z.infer<typeof SubscribeJob>

export const ClientFrame = z.discriminatedUnion('type', [
  CreateRequest,
  z.object({ type: z.literal('request.cancel'), id: ExchangeId }),
  SubscribeJob,
  z.object({ type: z.literal('job.unsubscribe'), id: ExchangeId }),
  z.object({ type: z.literal('ping'), id: ExchangeId }),
])
export type ClientFrame = z.infer<typeof ClientFrame>

/** Error in the OpenAI format, for all endpoints (docs/internals/protocol.md, Errors). */
const FrameError = z.strictObject({
  message: z.string(),
  type: z.string(),
  param: z.string().nullable(),
  code: z.string().nullable(),
})

export const ServerFrame = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('session.created'),
    session: z.strictObject({
      id: z.string(),
      protocol: z.literal(WS_PROTOCOL),
      max_in_flight: z.int(),
      max_message_bytes: z.int(),
      heartbeat_seconds: z.number(),
    }),
  }),
  z.strictObject({ type: z.literal('session.draining'), deadline_seconds: z.int() }),
  z.strictObject({ type: z.literal('request.accepted'), id: z.string(), job_id: z.string() }),
  z.strictObject({
    type: z.literal('request.event'),
    id: z.string(),
    sequence_number: z.int().min(1).describe('Counts from 1 without gaps, per id'),
    event: z.looseObject({}).describe('JSON of one data: line of the HTTP stream'),
  }),
  z.strictObject({
    type: z.literal('request.completed'),
    id: z.string(),
    status: z.int(),
    body: z
      .union([z.looseObject({}), z.string()])
      .nullable()
      .describe('null after a stream. A string if the response is text'),
  }),
  z.strictObject({
    type: z.literal('request.failed'),
    id: z.string(),
    status: z.int(),
    error: FrameError,
    retry_after: z.int().optional().describe('Minimum time before a retry, in seconds'),
  }),
  z.strictObject({ type: z.literal('request.cancelled'), id: z.string() }),
  z.strictObject({
    type: z.literal('job.event'),
    id: z.string(),
    event: z.looseObject({ type: z.string() }).describe('Event as in GET /v1/jobs/{id}/events'),
  }),
  z.strictObject({ type: z.literal('pong'), id: z.string() }),
  z.strictObject({ type: z.literal('error'), error: FrameError }),
])
export type ServerFrame = z.infer<typeof ServerFrame>
