import { z } from 'zod'

/** Purpose of an uploaded file. Only a file with the purpose `batch` is refused if its lines are invalid. */
export const FilePurpose = z.enum(['batch', 'assistants', 'fine-tune', 'vision', 'user_data', 'evals'])
export type FilePurpose = z.infer<typeof FilePurpose>

export const ExpiresAfter = z.object({
  anchor: z.literal('created_at'),
  seconds: z.coerce
    .number()
    .int()
    .min(3_600)
    .max(2_592_000)
    .describe('Time after creation, in seconds: 1 hour to 30 days'),
})
export type ExpiresAfter = z.infer<typeof ExpiresAfter>

export const FileForm = z.object({
  purpose: FilePurpose.describe('batch for the input of a batch'),
  expires_after: ExpiresAfter.nullish().describe('Expiry of the file'),
})
export type FileForm = z.infer<typeof FileForm>

const PAGE_MAX = 10_000

export const ListFiles = z.object({
  limit: z.coerce.number().int().min(0).max(PAGE_MAX).default(1_000).describe('Maximum files per page'),
  after: z.string().max(64).optional().describe('Cursor: id of the last file of the previous page'),
  order: z.enum(['asc', 'desc']).default('desc').describe('desc: newest first'),
  purpose: z
    .string()
    .max(64)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('Only files with this purpose'),
})
export type ListFiles = z.infer<typeof ListFiles>
