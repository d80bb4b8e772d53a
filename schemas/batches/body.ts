import { z } from 'zod'
import { ExpiresAfter } from '#schemas/files.ts'
import { Metadata } from '#schemas/record.ts'

/** Body of `POST /v1/batches`. */
export const CreateBatch = z.object({
  input_file_id: z.string().max(64),
  endpoint: z.string().max(200),
  completion_window: z
    .string()
    .regex(/^[1-9]\d{0,5}[smh]$/)
    .describe('24h, or another time in seconds, minutes or hours'),
  metadata: Metadata.nullish(),
  output_expires_after: ExpiresAfter.nullish(),
})
export type CreateBatch = z.infer<typeof CreateBatch>

/** Query of `GET /v1/batches`. */
export const ListBatches = z.object({
  limit: z.coerce.number().int().min(0).max(100).default(20),
  after: z.string().max(64).optional().describe('Cursor: id of the last batch of the page before'),
})
export type ListBatches = z.infer<typeof ListBatches>

/** Query of `GET /v1/messages/batches`. */
export const ListMessageBatches = z.object({
  limit: z.coerce.number().int().min(1).max(1_000).default(20),
  after_id: z.string().max(64).optional(),
  before_id: z.string().max(64).optional(),
})
export type ListMessageBatches = z.infer<typeof ListMessageBatches>
