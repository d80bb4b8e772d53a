import { z } from 'zod'

const TEXT_MAX = 256

/** A name, id or path. Control characters are rejected, because Postgres cannot store NUL. */
export const Text = z
  .string()
  .min(1)
  .max(TEXT_MAX)
  .regex(/^\P{Cc}*$/u)
