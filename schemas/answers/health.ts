import { z } from 'zod'

/** The answer of `GET /healthz`. */
export const HealthAnswer = z.object({ status: z.literal('ok') })

/** The answer of `GET /readyz`. */
export const ReadyAnswer = z.object({
  status: z.enum(['ready', 'not ready']),
  problems: z.array(z.string()).optional(),
  preparing: z.array(z.string()).optional().describe('What is still being fetched, built or loaded, and how far it is'),
})
