import { z } from 'zod'

const Usd = z.number().min(0).max(1_000_000).default(0)

export const Price = z.strictObject({
  input_per_million: Usd.describe('Per million input tokens'),
  cached_input_per_million: Usd.optional().describe(
    'Per million input tokens from a prompt cache. Default: input_per_million',
  ),
  output_per_million: Usd.describe('Per million output tokens'),
  per_minute_audio: Usd.describe('Per minute of transcribed audio'),
  per_second: Usd.describe('Per second of code run time'),
  per_call: Usd.describe('Per completed call or job'),
})
export type Price = z.infer<typeof Price>
