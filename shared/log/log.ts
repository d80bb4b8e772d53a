import { stripVTControlCharacters, styleText } from 'node:util'
import { type Logger, pino } from 'pino'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Returns the log form of an error. pino's default form copies the message, the stack, the causes and all other properties. Each of these may quote
 * user data: a prompt, a row that a database refused, invalid JSON, a server's address.
 *
 * Only selected properties are therefore logged, and messages only if they cannot contain data of a call:
 * 1. A ServiceError with a status below 500 is logged with its code only, because its message quotes the caller's request.
 * 2. The cause of an `internal_error` is logged with its class and stack frames only, because a bug's message may quote values.
 * 3. JavaScript's own errors are logged without their message for the same reason.
 * 4. All other errors, of a broker, a store or a disk, are logged with their message.
 */

const MESSAGE_MAX = 1_000
const FRAMES_MAX = 20
const CAUSES_MAX = 5

interface ErrorFields {
  type: string
  code?: string | number
  message?: string
  stack?: string
  cause?: object
}

/** Errors whose message V8 or zod composes from values. Example: `Unexpected token 'M', "My secret" is not valid JSON`. */
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

function framesOf({ stack = '', message }: Error): string {
  const lines = stack.slice(Math.max(0, stack.indexOf(message)) + message.length).split('\n')
  return lines
    .filter((line) => /^ {4}at \S/.test(line))
    .slice(0, FRAMES_MAX)
    .join('\n')
}

/** The log as text for a terminal. Fields that are equal in all lines of the JSON log are omitted. */

const ERROR = 50
const LABELS: Readonly<Record<number, { label: string; colour: 'dim' | 'yellow' | 'red' }>> = {
  10: { label: 'TRACE ', colour: 'dim' },
  20: { label: 'DEBUG ', colour: 'dim' },
  40: { label: 'WARN ', colour: 'yellow' },
  50: { label: 'ERROR ', colour: 'red' },
  60: { label: 'FATAL ', colour: 'red' },
}

const WAITING_CHARS_MAX = 64 * 1024

/** A structured logger: `log.info({ job_id }, 'job done')`. One line is logged per state change. Bodies, prompts and keys are never logged. */
export type Log = Logger

const SERIALIZERS = { err: errorFields }

/**
 * Opens the log of the process on standard output.
 *
 * @param level One of pino's: trace debug info warn error fatal silent.
 * @param format Default `auto`: text on a terminal, otherwise JSON lines
 */
export function openLog(level: string, service: string, format: 'auto' | 'json' | 'pretty' = 'auto'): Log {
  const options = { level, base: { service }, timestamp: pino.stdTimeFunctions.isoTime, serializers: SERIALIZERS }
  const isText = format === 'pretty' || (format === 'auto' && process.stdout.isTTY)
  if (!isText) return pino(options, new BatchedLines(pino.destination({ fd: 1, sync: true })))
  // The last line of the terminal may contain a progress bar. The line is cleared first, and the bar is drawn again below the log line.
  const clear = process.stdout.isTTY ? '\r\x1b[K' : ''
  return pino(options, { write: (json) => process.stdout.write(`${clear}${logText(json)}`) })
}

interface LineSink {
  write(text: string): unknown
}

/**
 * Buffers log lines and writes them once per event-loop iteration, because each write is a system call. Buffered lines are written before the process
 * exits. A killed process loses the lines of its last iteration.
 */
export class BatchedLines implements LineSink {
  readonly #sink: LineSink
  #waiting = ''
  readonly flush = () => {
    const text = this.#waiting
    this.#waiting = ''
    if (text !== '') this.#sink.write(text)
  }

  constructor(sink: LineSink) {
    this.#sink = sink
    process.once('exit', this.flush)
  }

  write(line: string): void {
    if (this.#waiting === '') setImmediate(this.flush)
    this.#waiting += line
    if (this.#waiting.length > WAITING_CHARS_MAX) this.flush()
  }
}

/**
 * Converts a JSON log line to text for a terminal. Example of such a text: `14:39:43 service ready role=ingress`.
 *
 * The text of an error contains its message and, from level `error` on, its stack. Control characters are removed, so that logged text cannot send
 * commands to the terminal.
 */
export function logText(json: string): string {
  const { level, time, service: _, msg, err, ...fields } = JSON.parse(json)
  const named = LABELS[level]
  const label = named ? styled(named.colour, named.label) : ''
  const clock = new Date(time).toLocaleTimeString('sv-SE')
  const why = err ? `: ${whyText(err)}` : ''
  const rest = Object.entries(fields).map(([name, value]) => ` ${name}=${valueText(value)}`)
  const stack = err?.stack && level >= ERROR ? `\n${String(err.stack).replace(/^/gm, '    ')}` : ''
  return `${styled('dim', clock)} ${label}${safe(`${msg}${why}${rest.join('')}${stack}`)}\n`
}

function whyText({ message, code, type, cause }: Record<string, unknown>): string {
  const own = String(message ?? code ?? type)
  return cause ? `${own}: ${whyText(cause as Record<string, unknown>)}` : own
}

/** Formats a value. A single word is written as it is. Any other value is written as JSON, so that a reader can see where it ends. */
function valueText(value: unknown): string {
  if (Array.isArray(value) && value.length > 0 && value.every(isWord)) return value.join(',')
  return isWord(value) ? value : JSON.stringify(value)
}

function isWord(value: unknown): value is string {
  return typeof value === 'string' && /^[!-~]+$/.test(value)
}

function safe(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern removes control characters
  return stripVTControlCharacters(text).replaceAll(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/g, '')
}

function styled(style: 'dim' | 'yellow' | 'red', text: string): string {
  return styleText(style, text, { stream: process.stdout })
}
