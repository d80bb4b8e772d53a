import { z } from 'zod'

/** Maximum characters of a name, id or path. */
const TEXT_MAX = 256

/** A name, id or path. Control characters are rejected, because Postgres cannot store NUL. */
export const Text = z
  .string()
  .min(1)
  .max(TEXT_MAX)
  .regex(/^\P{Cc}*$/u)
