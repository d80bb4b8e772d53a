import { z } from 'zod'

export const HealthAnswer = z.object({ status: z.literal('ok') })

export const ReadyAnswer = z.object({
  status: z.enum(['ready', 'not ready']),
  problems: z.array(z.string()).optional().describe('Reasons why the process is not ready'),
  preparing: z.array(z.string()).optional().describe('Models and sandboxes in preparation, with their progress'),
})
