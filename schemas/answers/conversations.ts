import { z } from 'zod'
import { ConversationItem } from '#schemas/responses/conversation.ts'
import { listOf, Seconds } from './shapes.ts'

/** A conversation that responses go on in (docs/responses.md, Conversations). */
export const ConversationAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation'),
  created_at: Seconds,
  metadata: z.record(z.string(), z.string()),
})

/** What is left of a conversation that was deleted. */
export const ConversationDeletedAnswer = z.object({
  id: z.string(),
  object: z.literal('conversation.deleted'),
  deleted: z.literal(true),
})

/** One item of a conversation. */
export const ConversationItemAnswer = ConversationItem

/** Items of a conversation. */
export const ConversationItemListAnswer = listOf(ConversationItem)
