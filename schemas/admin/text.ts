import { z } from 'zod'

/** Longest name, id or path that an operator sends. */
const TEXT_MAX = 256

/** Text of an operator. No control characters: Postgres refuses NUL. */
export const Text = z
  .string()
  .min(1)
  .max(TEXT_MAX)
  .regex(/^\P{Cc}*$/u)
