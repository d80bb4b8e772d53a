import { z } from 'zod'
import { ExpiresAfter } from '#schemas/files.ts'
import { Metadata } from '#schemas/record.ts'

export const CreateBatch = z.object({
  input_file_id: z.string().max(64).describe('Id of an uploaded JSONL file with one request per line'),
  endpoint: z.string().max(200).describe('Endpoint of all requests, such as /v1/chat/completions'),
  completion_window: z
    .string()
    .regex(/^[1-9]\d{0,5}[smh]$/)
    .describe('Time limit of the batch: a number of seconds, minutes or hours, such as 24h or 30m'),
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
  output_expires_after: ExpiresAfter.nullish().describe('Retention of the output files'),
})
export type CreateBatch = z.infer<typeof CreateBatch>

export const ListBatches = z.object({
  limit: z.coerce.number().int().min(0).max(100).default(20).describe('Maximum batches per page'),
  after: z.string().max(64).optional().describe('Cursor: id of the last batch of the previous page'),
})
export type ListBatches = z.infer<typeof ListBatches>

export const ListMessageBatches = z.object({
  limit: z.coerce.number().int().min(1).max(1_000).default(20).describe('Maximum batches per page'),
  after_id: z.string().max(64).optional().describe('Cursor: the page starts after this batch'),
  before_id: z.string().max(64).optional().describe('Cursor: the page ends before this batch'),
})
export type ListMessageBatches = z.infer<typeof ListMessageBatches>
