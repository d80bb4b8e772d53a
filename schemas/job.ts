/*
 * Job records: the pools, the record of a job in Kafka, and the stored request of a durable job.
 *
 * A `JobEnvelope` is a record of the topic `jobs.<pool>` (docs/internals/protocol.md, Records). `id` and `attempt` together name one execution. Times
 * are absolute unix milliseconds. An attached job has `reply`, the address of its ingress. A durable job has no `reply`, because the store owns it.
 *
 * A body up to 64 KiB is part of the Kafka record or the database row, in the internal form of its kind. A larger body is stored in the blob with the
 * key `blob`.
 */

import { z } from 'zod'
import { EncodingFormat } from './kinds/embeddings.ts'
import { RerankForm } from './kinds/rerank.ts'
import { SpeechForm } from './kinds/speech.ts'
import { TranscriptForm } from './kinds/transcription.ts'
import { ResponsesForm } from './responses/response.ts'

interface Pool {
  /** Work of the pool as a verb phrase, which completes messages for operators and callers. */
  readonly work: string
  readonly hasModels: boolean
  /** Endpoint paths of calls to this pool, as they may be listed in `endpoints` of a key. A path also covers the paths below it. */
  readonly scopes: readonly string[]
}

/** All pools. A new pool starts with an entry here (CONTRIBUTING.md, Add a pool). */
export const POOLS = {
  inference: {
    work: 'generate text',
    hasModels: true,
    scopes: [
      '/v1/chat/completions',
      '/v1/completions',
      '/v1/messages',
      '/v1/messages/count_tokens',
      '/v1/responses',
      '/v1/moderations',
      '/v1/audio/speech',
    ],
  },
  embeddings: { work: 'make embeddings', hasModels: true, scopes: ['/v1/embeddings', '/v1/rerank'] },
  transcription: {
    work: 'transcribe audio',
    hasModels: true,
    scopes: ['/v1/audio/transcriptions', '/v1/audio/translations'],
  },
  code: { work: 'run Python in a sandbox', hasModels: false, scopes: ['/v1/tools/code'] },
  research: { work: 'research questions', hasModels: true, scopes: ['/v1/deep-research'] },
  batches: { work: 'run batches of requests', hasModels: false, scopes: [] },
} as const satisfies Record<string, Pool>

/** Name of a pool, of its topic (`jobs.<pool>`) and of its service. */
export const PoolName = z.enum(Object.keys(POOLS) as [keyof typeof POOLS])
export type PoolName = z.infer<typeof PoolName>

export type ModelPool = {
  [Name in PoolName]: (typeof POOLS)[Name]['hasModels'] extends true ? Name : never
}[PoolName]

export function hasModels(pool: PoolName): pool is ModelPool {
  return POOLS[pool].hasModels
}

/** Data of the request that is needed to encode the output of its job in the format of the called endpoint. */
export const EncodeContext = z.strictObject({
  request_id: z.string(),
  call_id: z.string().describe('Part of the response id after the prefix: unique and URL-safe'),
  created_at: z.int().describe('Unix seconds'),
  model: z.string().describe('Model name in the response, unless the engine reports another'),
  include_usage: z.boolean().describe('Chat: value of stream_options.include_usage'),
  version: z.string().describe('Messages: anthropic-version, which selects the format version'),
  encoding_format: EncodingFormat.optional().describe('Embeddings: format of vectors. Absent: numbers'),
  rerank: RerankForm.optional().describe('Reranking: documents in the response'),
  speech: SpeechForm.optional().describe('Speech: audio format'),
  transcript: TranscriptForm.optional().describe('Transcriptions: format of the response'),
  responses: ResponsesForm.optional().describe('Responses: request fields in the response'),
})
export type EncodeContext = z.infer<typeof EncodeContext>

/** Start of a prompt that several responses have in common. The messages are stored once, in consecutive blobs (shared/jobs/durable/history.ts). */
export const SharedHistory = z.strictObject({
  at: z.int().min(0).describe('Index of the first shared message in the prompt'),
  segments: z.array(z.strictObject({ blob: z.string(), turns: z.int().min(1), bytes: z.int().min(0) })),
})
export type SharedHistory = z.infer<typeof SharedHistory>

export const JobEnvelope = z.strictObject({
  id: z.string().startsWith('job_'),
  attempt: z
    .int()
    .min(0)
    .describe(
      'Number of the execution. Fencing token: output of older attempts is rejected. 0 in durable jobs, whose claim assigns the number',
    ),
  pool: PoolName,
  kind: z.string().describe('Work in the pool, such as generate'),
  tenant: z.string().describe('Project id'),
  model: z.string(),
  created_at_ms: z.number(),
  deadline_ms: z.number().describe('Deadline: later output is rejected'),
  reply: z
    .strictObject({ boot: z.string().describe('Boot id of the ingress that holds the job'), shard: z.int().min(0) })
    .optional()
    .describe('Destination of the events of an attached job. Absent: a durable job, owned by the store'),
  endpoint: z.string().optional().describe('Durable jobs: endpoint path'),
  encode: EncodeContext.optional().describe('Durable jobs: encoding of the stored result'),
  stream: z.boolean().describe('true: send deltas immediately. false: send all deltas at the end'),
  traceparent: z
    .string()
    .optional()
    .describe('W3C Trace Context: traceparent, tracestate and baggage, separated by tabs'),
  request_id: z.string().optional(),
  body: z.unknown().optional().describe('The request in the internal form of its kind, up to 64 KiB of JSON'),
  blob: z.string().optional().describe('Blob with the body, if larger'),
  history: SharedHistory.optional().describe('Shared start of the prompt. The body has the rest, as after_history'),
  replay_of: z.string().optional().describe('Replay: job whose recorded steps replace external operations'),
})
export type JobEnvelope = z.infer<typeof JobEnvelope>

export type AttachedEnvelope = JobEnvelope & { readonly reply: NonNullable<JobEnvelope['reply']> }

export const StoredRequest = z.strictObject({
  body: z.unknown().optional(),
  blob: z.string().optional(),
  history: SharedHistory.optional().describe('Shared start of the prompt. The body has the rest, as after_history'),
  attachments: z
    .array(z.string())
    .optional()
    .describe('Blobs that the body refers to, such as uploaded audio. Deleted with the body'),
  encode: EncodeContext,
  replay_of: z.string().optional().describe('Replay: job whose recorded steps replace external operations'),
})
export type StoredRequest = z.infer<typeof StoredRequest>
