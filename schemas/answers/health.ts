import { z } from 'zod'

/** The answer of `GET /healthz`. */
export const HealthAnswer = z.object({ status: z.literal('ok') })

/** The answer of `GET /readyz`. */
export const ReadyAnswer = z.object({
  status: z.enum(['ready', 'not ready']),
  problems: z.array(z.string()).optional(),
})
