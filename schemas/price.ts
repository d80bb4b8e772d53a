import { z } from 'zod'

const Usd = z.number().min(0).max(1_000_000).default(0)

/** What the use of a model costs, in US dollars. Absent: nothing. */
export const Price = z.strictObject({
  input_per_million: Usd.describe('Tokens of the prompt, or of what is embedded'),
  cached_input_per_million: Usd.optional().describe('Those of them read from a prompt cache; absent: as the others'),
  output_per_million: Usd.describe('Tokens of the answer'),
  per_minute_audio: Usd.describe('Audio that is transcribed'),
  per_second: Usd.describe('Run time of code'),
  per_call: Usd.describe('Each call or job that completed'),
})
export type Price = z.infer<typeof Price>
