/*
 * What the log says of an error. pino's own way copies message, stack, causes and every other property, and those quote
 * what the error is about: a prompt, the row that a database refused, the text that is not JSON, the address of a server.
 *
 * So the properties are chosen here, and words are kept only where they cannot come from a call:
 *
 * - a ServiceError about the caller's request (below 500) has its code alone: its message quotes that request;
 * - of what lies behind `internal_error` there are the class and the places in the code: a bug's message quotes the
 *   values that it met;
 * - JavaScript's own errors never have their message, for the same reason;
 * - every other error, of a broker, a store or a disk, is quoted.
 */
import { ServiceError } from '#shared/error.ts'

const MESSAGE_MAX = 1_000
const FRAMES_MAX = 20
const CAUSES_MAX = 5

/** An error as the log has it. An error may add `facts` of its own, such as the status that an upstream answered with. */
interface ErrorFields {
  type: string
  code?: string | number
  message?: string
  /** Places in the code, without the message that V8 puts above them. */
  stack?: string
  cause?: object
}

/** Errors whose message V8 or zod make of the values at hand: `Unexpected token 'M', "My secret" is not valid JSON`. */
const QUOTING = [SyntaxError, TypeError, RangeError, URIError, EvalError]
const isQuoting = (error: Error) => error.name.endsWith('ZodError') || QUOTING.some((type) => error instanceof type)

/** The fields of a thrown value that may stand in the log; pino calls it for every `err`. */
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

/** The stack below its message, which may itself have lines that look like places. */
function framesOf({ stack = '', message }: Error): string {
  const lines = stack.slice(Math.max(0, stack.indexOf(message)) + message.length).split('\n')
  return lines
    .filter((line) => /^ {4}at \S/.test(line))
    .slice(0, FRAMES_MAX)
    .join('\n')
}
