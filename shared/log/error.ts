/*
 * Log form of an error. pino's default copies message, stack, causes and all other properties. These may quote user data: a prompt, a row that a
 * database refused, invalid JSON, a server's address.
 *
 * So the properties are chosen here, and messages are logged only if they cannot contain data of a call.
 * 1. A ServiceError about the caller's request (below 500) has its code only: its message quotes the request.
 * 2. The cause of an `internal_error` has its class and stack frames only: a bug's message quotes values.
 * 3. JavaScript's own errors never have their message, for the same reason.
 * 4. Every other error, of a broker, a store or a disk, has its message.
 */
import { ServiceError } from '#shared/error.ts'

const MESSAGE_MAX = 1_000
const FRAMES_MAX = 20
const CAUSES_MAX = 5

/** An error in the log. An error may add `facts`, such as the HTTP status of an upstream. */
interface ErrorFields {
  type: string
  code?: string | number
  message?: string
  /** Stack frames, without the message that V8 puts above them. */
  stack?: string
  cause?: object
}

/** Errors whose message V8 or zod builds from values: `Unexpected token 'M', "My secret" is not valid JSON`. */
const QUOTING = [SyntaxError, TypeError, RangeError, URIError, EvalError]
const isQuoting = (error: Error) => error.name.endsWith('ZodError') || QUOTING.some((type) => error instanceof type)

export function errorFields(thrown: unknown): object {
  return fieldsOf(thrown, true, CAUSES_MAX)
}

function fieldsOf(thrown: unknown, mayQuote: boolean, causesMax: number): object {
  if (!(thrown instanceof Error)) return { type: typeof thrown }
  const { code, facts, cause } = thrown as Error & { code?: unknown; facts?: object }
  const isAboutCall = thrown instanceof ServiceError && thrown.status < 500
  const hasWords = mayQuote && !isAboutCall && !isQuoting(thrown) && thrown.message !== ''
  const mayQuoteCause = mayQuote && !isAboutCall && code !== 'internal_error'
  const stack = framesOf(thrown)
  const fields: ErrorFields = {
    type: thrown.name.slice(0, MESSAGE_MAX),
    ...(isCode(code) && { code }),
    ...(hasWords && { message: thrown.message.slice(0, MESSAGE_MAX) }),
    ...facts,
    ...(stack !== '' && { stack }),
    ...(cause !== undefined && causesMax > 0 && { cause: fieldsOf(cause, mayQuoteCause, causesMax - 1) }),
  }
  return fields
}

function isCode(code: unknown): code is string | number {
  return typeof code === 'number' || (typeof code === 'string' && /^[\w.-]{1,64}$/.test(code))
}

/** The stack after the message, which may itself contain lines that look like frames. */
function framesOf({ stack = '', message }: Error): string {
  const lines = stack.slice(Math.max(0, stack.indexOf(message)) + message.length).split('\n')
  return lines
    .filter((line) => /^ {4}at \S/.test(line))
    .slice(0, FRAMES_MAX)
    .join('\n')
}
