import { z } from 'zod'
import { Metadata } from '#schemas/record.ts'

/* Bodies of `/v1/conversations` (docs/guides/responses.md, Conversations). The decoder checks items one at a time. */

export const ADDED_MAX = 20

const Items = z.array(z.unknown()).max(ADDED_MAX)

export const CreateConversation = z.object({
  items: Items.nullish().describe('Initial items, at most 20'),
  metadata: Metadata.nullish(),
})

export const UpdateConversation = z.object({ metadata: Metadata.nullable() })

export const CreateItems = z.object({ items: Items.min(1).describe('Items to append, at most 20') })

export const ListItems = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  order: z.enum(['asc', 'desc']).default('desc').describe('desc: newest first'),
  after: z.string().max(128).optional().describe('Cursor: last_id of the previous page'),
})

export const ConversationParam = z.union([z.string().min(1), z.looseObject({ id: z.string().min(1) })])

export const ConversationItem = z.looseObject({ id: z.string(), type: z.string() })
export type ConversationItem = z.infer<typeof ConversationItem>
