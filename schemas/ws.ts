import { z } from 'zod'
import { JobFields, Webhook } from './jobs.ts'

/**
 * The frames of `GET /v1/ws`, subprotocol `inference.v1` (docs/websocket.md, Frames): text, one JSON object each.
 * Requests and subscriptions share one namespace of ids; each id ends with exactly one of `request.completed`,
 * `request.failed` and `request.cancelled`.
 */
export const WS_PROTOCOL = 'inference.v1'

/** Why the server closes a connection (RFC 6455 §7.4; 4400 and above are ours). */
export const WS_CLOSE = {
  restart: 1012,
  overloaded: 1013,
  malformed: 4400,
  keyRevoked: 4401,
  idle: 4408,
  duplicateId: 4409,
  tooManyConnections: 4429,
} as const

const ExchangeId = z.string().min(1).max(64).describe("The client's own id, unique while active")

const CreateRequest = z.object({
  type: z.literal('request.create'),
  id: ExchangeId,
  endpoint: z.string().describe('Path of the call to make, such as /v1/chat/completions'),
  body: z.looseObject({}).describe('Its body; stream is true unless it says false'),
  idempotency_key: z.string().nullish().describe('Makes the request durable, as the header of that name does'),
  ...JobFields.shape,
  webhook: Webhook.loose().nullish().describe('What it does not know is refused, as in POST /v1/jobs'),
})
export type CreateRequest = z.infer<typeof CreateRequest>

const SubscribeJob = z.object({
  type: z.literal('job.subscribe'),
  id: ExchangeId,
  job_id: z.string(),
  starting_after: z.int().min(0).nullish().describe('Number of the last event the client has; default: none'),
})
export type SubscribeJob = z.infer<typeof SubscribeJob>

/** What a client may send. Unknown fields are ignored. */
export const ClientFrame = z.discriminatedUnion('type', [
  CreateRequest,
  z.object({ type: z.literal('request.cancel'), id: ExchangeId }),
  SubscribeJob,
  z.object({ type: z.literal('job.unsubscribe'), id: ExchangeId }),
  z.object({ type: z.literal('ping'), id: ExchangeId }),
])
export type ClientFrame = z.infer<typeof ClientFrame>

/** The inner object of an error in the OpenAI format (docs/protocol.md, Errors), for every endpoint. */
const FrameError = z.strictObject({
  message: z.string(),
  type: z.string(),
  param: z.string().nullable(),
  code: z.string().nullable(),
})

/** What the server sends. */
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
    sequence_number: z.int().min(1).describe('From 1 without gaps, for each id'),
    event: z.looseObject({}).describe('What the stream of the endpoint has in its data: line'),
  }),
  z.strictObject({
    type: z.literal('request.completed'),
    id: z.string(),
    status: z.int(),
    body: z
      .union([z.looseObject({}), z.string()])
      .nullable()
      .describe('Null after a stream; a string where the answer is text'),
  }),
  z.strictObject({
    type: z.literal('request.failed'),
    id: z.string(),
    status: z.int(),
    error: FrameError,
    retry_after: z.int().optional().describe('Seconds'),
  }),
  z.strictObject({ type: z.literal('request.cancelled'), id: z.string() }),
  z.strictObject({
    type: z.literal('job.event'),
    id: z.string(),
    event: z.looseObject({ type: z.string() }).describe('As in GET /v1/jobs/{id}/events'),
  }),
  z.strictObject({ type: z.literal('pong'), id: z.string() }),
  z.strictObject({ type: z.literal('error'), error: FrameError }),
])
export type ServerFrame = z.infer<typeof ServerFrame>
