import { z } from 'zod'
import { ConversationItem } from '#schemas/responses/conversation.ts'
import { listOf, Seconds } from './shapes.ts'

export const ConversationAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation'),
  created_at: Seconds,
  metadata: z.record(z.string(), z.string()),
})

export const ConversationDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation.deleted'),
  deleted: z.literal(true),
})

export const ConversationItemAnswer = ConversationItem

export const ConversationItemListAnswer = listOf(ConversationItem)
