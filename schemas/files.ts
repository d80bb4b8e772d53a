import { z } from 'zod'

/** What a file may be uploaded for. Only those for batches are looked at as they arrive. */
export const FilePurpose = z.enum(['batch', 'assistants', 'fine-tune', 'vision', 'user_data', 'evals'])
export type FilePurpose = z.infer<typeof FilePurpose>

/** When a file is to be forgotten. */
export const ExpiresAfter = z.object({
  anchor: z.literal('created_at'),
  seconds: z.coerce.number().int().min(3_600).max(2_592_000).describe('An hour to 30 days'),
})
export type ExpiresAfter = z.infer<typeof ExpiresAfter>

/** The fields of the form of `POST /v1/files` beside the file itself. */
export const FileForm = z.object({ purpose: FilePurpose, expires_after: ExpiresAfter.nullish() })
export type FileForm = z.infer<typeof FileForm>

/** Most files of one page. */
const PAGE_MAX = 10_000

/** Query of `GET /v1/files`. */
export const ListFiles = z.object({
  limit: z.coerce.number().int().min(0).max(PAGE_MAX).default(1_000),
  after: z.string().max(64).optional().describe('Cursor: id of the last file of the page before'),
  order: z.enum(['asc', 'desc']).default('desc'),
  purpose: z
    .string()
    .max(64)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('No control characters: Postgres refuses NUL'),
})
export type ListFiles = z.infer<typeof ListFiles>
