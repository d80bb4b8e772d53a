import { z } from 'zod'

export const Seconds = z.int().describe('Unix seconds')

export function listOf<Item extends z.ZodType>(item: Item) {
  return z.object({
    object: z.literal('list'),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable().describe('Cursor of the next page, for the parameter `after`'),
    has_more: z.boolean().describe('true: more pages follow'),
  })
}
