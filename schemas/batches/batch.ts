import { z } from 'zod'
import { ErrorBody } from '#schemas/error.ts'
import { recordOf } from '#schemas/record.ts'

/** How the requests of a batch are written, and what comes of them: OpenAI's lines or Anthropic's. */
export const BatchDialect = z.enum(['requests', 'messages'])
export type BatchDialect = z.infer<typeof BatchDialect>

/** What a part of a batch shares with the whole of it. */
const Shared = {
  dialect: BatchDialect,
  endpoint: z.string().describe('Path that all requests call'),
  input: z.string().describe('Blob with the requests, a line each; it belongs to the batch'),
  rights: z
    .strictObject({
      key_id: z.string(),
      endpoints: z.array(z.string()).optional(),
      models: z.array(z.string()).optional(),
    })
    .describe('What the key that made the batch was allowed'),
  headers: recordOf(z.string(), z.string()).describe('Those of the call that its requests are read by'),
}

/** A batch, as it travels to whoever runs it. */
export const BatchRequest = z.strictObject({
  ...Shared,
  input_file_id: z.string().nullable().describe('The file it was made of, which may be gone since'),
  completion_window: z.string(),
  requests: z.int().nullable().describe('How many there are, where that was counted when it was made'),
  keep_ms: z.int().min(0).describe('How long its files are kept'),
})
export type BatchRequest = z.infer<typeof BatchRequest>

/** Some lines of a batch. */
export const BatchPartRange = z.strictObject({
  start: z.int().min(0).describe('Byte of the input at which its first line begins'),
  end: z.int().min(0).describe('The byte behind its last one'),
  line: z.int().min(1).describe('Number of its first line'),
  requests: z.int().min(1),
})
export type BatchPartRange = z.infer<typeof BatchPartRange>

/** A part of a batch, as it travels. */
export const BatchPartRequest = z.strictObject({ ...Shared, range: BatchPartRange })
export type BatchPartRequest = z.infer<typeof BatchPartRequest>

/** How requests ended. */
export const BatchCounts = z.strictObject({
  completed: z.int(),
  failed: z.int(),
  cancelled: z.int(),
  expired: z.int(),
})
export type BatchCounts = z.infer<typeof BatchCounts>

/** What requests have used, in tokens. */
export const BatchUsage = z.strictObject({
  input_tokens: z.int(),
  cached_tokens: z.int(),
  output_tokens: z.int(),
  reasoning_tokens: z.int(),
})
export type BatchUsage = z.infer<typeof BatchUsage>

/** What came of a part: its lines are blobs, named by its job. */
export const BatchPartResult = z.strictObject({
  counts: BatchCounts,
  usage: BatchUsage,
  output_bytes: z.int(),
  error_bytes: z.int(),
})
export type BatchPartResult = z.infer<typeof BatchPartResult>

/** What is wrong with the requests of a batch that was not begun. */
export const BatchProblem = z.strictObject({
  code: z.string(),
  message: z.string(),
  param: z.string().nullable(),
  line: z.int().nullable(),
})
export type BatchProblem = z.infer<typeof BatchProblem>

/** What came of a batch. */
export const BatchResult = z.strictObject({
  status: z.enum(['completed', 'failed', 'expired', 'cancelled']),
  model: z.string().nullable(),
  problems: z.array(BatchProblem),
  counts: BatchCounts,
  usage: BatchUsage,
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  finalizing_at_ms: z.number().nullable(),
})
export type BatchResult = z.infer<typeof BatchResult>

/** The one event of a part, and of a batch. */
export const BatchPartEvent = z.strictObject({ type: z.literal('part'), result: BatchPartResult })
export type BatchPartEvent = z.infer<typeof BatchPartEvent>
export const BatchEvent = z.strictObject({ type: z.literal('batch'), result: BatchResult })
export type BatchEvent = z.infer<typeof BatchEvent>

/** Why a request of a part was not made a job of. */
export const Refusals = recordOf(z.string(), ErrorBody)
export type Refusals = z.infer<typeof Refusals>
