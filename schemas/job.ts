import { z } from 'zod'
import { EncodingFormat } from './embeddings.ts'
import { RerankForm } from './rerank.ts'
import { ResponsesForm } from './responses/response.ts'
import { SpeechForm } from './speech.ts'
import { TranscriptForm } from './transcription/transcription.ts'

/** What the workers of each pool do, for people. */
export const POOLS = {
  inference: 'generate text',
  embeddings: 'make embeddings',
  transcription: 'transcribe audio',
  code: 'run Python in a sandbox',
  research: 'research questions',
  batches: 'run batches of requests',
} as const

/** What a pool is for; also the name of its topic (`jobs.<pool>`) and of its service. */
export const PoolName = z.enum(Object.keys(POOLS) as [keyof typeof POOLS])
export type PoolName = z.infer<typeof PoolName>

/** Pools whose jobs need no model: code runs in a sandbox, and batches have other jobs do the work. */
const WITHOUT_MODELS = ['code', 'batches'] as const
/** A pool whose work is that of models. */
export type ModelPool = Exclude<PoolName, (typeof WITHOUT_MODELS)[number]>

/** Whether a pool's jobs name a model of the catalogue. */
export function hasModels(pool: PoolName): pool is ModelPool {
  return !(WITHOUT_MODELS as readonly PoolName[]).includes(pool)
}

/** What it takes to say the output of a job in the words of its caller's endpoint. */
export const EncodeContext = z.strictObject({
  request_id: z.string(),
  call_id: z.string().describe("Part of the answer's id after its prefix: unique, URL-safe"),
  created_at: z.int().describe('Unix seconds'),
  model: z.string().describe('Named in the answer unless the engine names another'),
  include_usage: z.boolean().describe('Chat: the caller set stream_options.include_usage'),
  version: z.string().describe('Messages: the date of anthropic-version, which picks the dialect'),
  encoding_format: EncodingFormat.optional().describe('Embeddings: how vectors are written; absent: as numbers'),
  rerank: RerankForm.optional().describe('Reranking: which documents are told, and how'),
  speech: SpeechForm.optional().describe('Speech: its format'),
  transcript: TranscriptForm.optional().describe('Transcriptions: what the answer looks like'),
  responses: ResponsesForm.optional().describe('Responses: what the answer repeats of its request'),
})
export type EncodeContext = z.infer<typeof EncodeContext>

/** Segments of a prompt that responses share: blobs with turns, one after the other (shared/jobs/durable/history.ts). */
export const SharedHistory = z.strictObject({
  at: z.int().min(0).describe('The turn of the prompt that they begin at'),
  segments: z.array(z.strictObject({ blob: z.string(), turns: z.int().min(1), bytes: z.int().min(0) })),
})
export type SharedHistory = z.infer<typeof SharedHistory>

/**
 * A job as it travels on `jobs.<pool>` (docs/design.md, Topics and records).
 *
 * `id` and `attempt` together name one execution. Times are absolute unix milliseconds.
 */
export const JobEnvelope = z.strictObject({
  id: z.string().startsWith('job_'),
  attempt: z
    .int()
    .min(0)
    .describe('Counts executions; fences the output of older ones. 0 in a durable job: its claim says which it is'),
  pool: PoolName,
  kind: z.string().describe('What to do in the pool, such as generate'),
  tenant: z.string().describe('Id of the project the job belongs to'),
  model: z.string(),
  created_at_ms: z.number(),
  deadline_ms: z.number().describe('No output counts after this'),
  reply: z
    .strictObject({ boot: z.string().describe('Boot id of the ingress that holds the job'), shard: z.int().min(0) })
    .optional()
    .describe('Where the events of an attached job go; absent: a durable job, whose arbiter is the store'),
  endpoint: z.string().optional().describe('Durable: path of the call it stands for'),
  encode: EncodeContext.optional().describe('Durable: how its output is kept'),
  stream: z.boolean().describe('Deltas are wanted as they come; otherwise they are held back until the end'),
  traceparent: z.string().optional().describe('W3C Trace Context'),
  request_id: z.string().optional(),
  body: z.unknown().optional().describe('The request in the internal form of its kind, up to 64 KiB of JSON'),
  blob: z.string().optional().describe('Where the body lies when it is larger'),
  history: SharedHistory.optional().describe('The body is the rest of a prompt, as after_history'),
  replay_of: z
    .string()
    .optional()
    .describe('Composed: the job whose record answers in the place of everything outside'),
})
export type JobEnvelope = z.infer<typeof JobEnvelope>

/** A job that an ingress holds. */
export type AttachedEnvelope = JobEnvelope & { readonly reply: NonNullable<JobEnvelope['reply']> }

/** What the store keeps of a durable job's request: the body in the internal form of its kind, or where it lies. */
export const StoredRequest = z.strictObject({
  body: z.unknown().optional(),
  blob: z.string().optional(),
  history: SharedHistory.optional().describe('The body is the rest of a prompt, as after_history'),
  attachments: z
    .array(z.string())
    .optional()
    .describe('Blobs the body names, such as uploaded audio: they live as long as it'),
  encode: EncodeContext,
  replay_of: z.string().optional().describe('The job whose record answers in the place of everything outside'),
})
export type StoredRequest = z.infer<typeof StoredRequest>
