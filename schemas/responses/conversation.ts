import { z } from 'zod'
import { Metadata } from '#schemas/record.ts'

/** The wire shapes of `/v1/conversations` (docs/responses.md, Conversations). Items are checked one by one, as those of a request. */

/** Items that one call may add. */
export const ADDED_MAX = 20

const Items = z.array(z.unknown()).max(ADDED_MAX)

/** Body of `POST /v1/conversations`, which may be left out. */
export const CreateConversation = z.object({ items: Items.nullish(), metadata: Metadata.nullish() })

/** Body of `POST /v1/conversations/{id}`. */
export const UpdateConversation = z.object({ metadata: Metadata.nullable() })

/** Body of `POST /v1/conversations/{id}/items`. */
export const CreateItems = z.object({ items: Items.min(1) })

/** Query of `GET /v1/conversations/{id}/items`. */
export const ListItems = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20),
  order: z.enum(['asc', 'desc']).default('desc'),
  after: z.string().max(128).optional().describe('Id of the last item of the page before'),
})

/** The conversation that a response belongs to, in the body of `POST /v1/responses`. */
export const ConversationParam = z.union([z.string().min(1), z.looseObject({ id: z.string().min(1) })])

/** An item as it is kept and shown. */
export const ConversationItem = z.looseObject({ id: z.string(), type: z.string() })
export type ConversationItem = z.infer<typeof ConversationItem>
