import { z } from 'zod'

/** A time on the wire. */
export const Seconds = z.int().describe('Unix seconds')

/** One page of a list, with the cursor of the next. */
export function listOf<Item extends z.ZodType>(item: Item) {
  return z.object({
    object: z.literal('list'),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable().describe('Cursor of the next page'),
    has_more: z.boolean(),
  })
}
