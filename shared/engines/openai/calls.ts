import type { GenerateEvent } from '#schemas/generate.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { objectIn } from '#shared/json/object.ts'
import { SurrogateBuffer } from '#shared/surrogate-buffer.ts'

/*
 * Tool calls of one choice, as many servers write them.
 *
 * OpenAI numbers the calls, and the first delta of a call has its id and name. Other servers leave out the number or the id, give
 * every call number 0 or one id, repeat the name in each delta, or send arguments as an object. So a delta with a name belongs to
 * the call before it only if that call can go on: its arguments are not yet a closed object. Example: `f {"a":1}` and then
 * `g {"b":2}`, both with index 0 and without an id, are two calls.
 */

/** Calls of one choice: no model makes more, and each delta is compared to all of them. */
const CALLS_MAX = 1_024
/** Characters of the arguments of one call, of which those without a name are held. */
const ARGUMENTS_CHARS_MAX = 8 * 1024 * 1024
/** Characters that are searched for the end of the arguments. */
const SCANNED_CHARS_MAX = 256 * 1024

export interface WireToolCall {
  index?: unknown
  id?: unknown
  name?: unknown
  arguments?: unknown
  function?: WireFunction | null
  custom?: { name?: unknown; input?: unknown } | null
}

interface WireFunction {
  name?: unknown
  arguments?: unknown
  /** Servers of Llama models. */
  parameters?: unknown
}

/** A delta of a call, as far as it could be read. */
interface CallDelta {
  readonly index: number | undefined
  readonly id: string
  readonly name: string
  readonly text: string
  readonly isCustom: boolean
  readonly extra: Record<string, unknown> | undefined
}

const KNOWN_FIELDS: ReadonlySet<string> = new Set(['index', 'id', 'type', 'function', 'custom', 'name', 'arguments'])

export interface CallsOptions {
  readonly choice: number
  readonly model: string
  /** Unknown fields of calls go along. */
  readonly keepsExtra: boolean
}

/** Calls of one choice as they grow. */
export class Calls {
  readonly #options: CallsOptions
  readonly #calls: CallState[] = []
  readonly #ids = new Set<string>()

  constructor(options: CallsOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#calls.length
  }

  /** @param isWhole Each entry is a call of its own */
  read(entries: unknown, isWhole: boolean, out: GenerateEvent[]): void {
    const listed = Array.isArray(entries) ? entries : [entries]
    for (const entry of listed) {
      if (typeof entry !== 'object' || entry === null) continue
      const delta = readDelta(entry as WireToolCall, this.#options.keepsExtra)
      const call = (isWhole ? undefined : this.#find(delta)) ?? this.#add(delta)
      call.read(delta, this.#ids, out)
    }
  }

  /**
   * Pushes the arguments that were held back.
   *
   * @returns false if arguments of a call are not JSON of an object: they broke off
   * @throws ServiceError if a call has no name
   */
  end(out: GenerateEvent[]): boolean {
    let areWhole = true
    for (const call of this.#calls) {
      if (call.name === '') throw answerError(this.#options.model, 'called a tool without a name')
      areWhole = call.end(out) && areWhole
    }
    return areWhole
  }

  #find(delta: CallDelta): CallState | undefined {
    const { index, id } = delta
    const byId = index === undefined && id !== '' ? this.#calls.findLast((call) => call.wireId === id) : undefined
    const last = byId ?? this.#calls.findLast((call) => index === undefined || call.index === index)
    return last && !isOtherCall(delta, last) ? last : undefined
  }

  #add({ index }: CallDelta): CallState {
    const { model, choice } = this.#options
    if (this.#calls.length >= CALLS_MAX) throw answerError(model, `called tools more than ${CALLS_MAX} times`)
    const call = new CallState(model, choice, this.#calls.length, index)
    this.#calls.push(call)
    return call
  }
}

function readDelta(wire: WireToolCall, keepsExtra: boolean): CallDelta {
  const { index, id, custom } = wire
  const called: WireFunction = wire.function ?? wire
  const name = custom?.name ?? called.name
  const number = typeof index === 'string' && index !== '' ? Number(index) : index
  return {
    index: Number.isInteger(number) ? (number as number) : undefined,
    id: typeof id === 'string' || typeof id === 'number' ? String(id) : '',
    name: typeof name === 'string' && name.trim() !== '' ? name : '',
    text: textOf(custom ? custom.input : (called.arguments ?? called.parameters)),
    isCustom: typeof custom === 'object' && custom !== null,
    extra: keepsExtra ? unknownFields(wire) : undefined,
  }
}

function textOf(value: unknown): string {
  if (typeof value === 'string') return value
  return value === null || value === undefined ? '' : JSON.stringify(value)
}

function unknownFields(wire: object): Record<string, unknown> | undefined {
  const fields = Object.entries(wire).filter(([name, value]) => value !== null && !KNOWN_FIELDS.has(name))
  return fields.length > 0 ? Object.fromEntries(fields) : undefined
}

function isOtherCall(delta: CallDelta, last: CallState): boolean {
  const { index, id, name, text } = delta
  if (name === '' || last.name === '') return false
  const isOtherId = id !== '' && last.wireId !== '' && id !== last.wireId
  if (last.isClosed) return isOtherId || name !== last.name || text.trim() !== ''
  if (last.hasText) return name !== last.name || (isOtherId && index === undefined)
  const isNamed = index !== undefined || (id !== '' && id === last.wireId)
  return isOtherId || name !== last.name || !isNamed
}

/** One tool call as it grows; its event is pushed once its name is known. */
class CallState {
  readonly index: number | undefined
  readonly #model: string
  readonly #choice: number
  readonly #call: number
  readonly #text = new SurrogateBuffer()
  readonly #scan = new ObjectScan()
  /** The id as the server gave it, which another call may have too. */
  wireId = ''
  /** Unique in its choice; empty: the encoder makes one. */
  id = ''
  name = ''
  #isCustom = false
  /** Whether something other than blanks, null and the begin of a string was read. */
  #isWritten = false
  #isQuoted = false
  /** Arguments that wait for the name, or for what they turn out to be. */
  #held = ''
  #written = ''

  constructor(model: string, choice: number, call: number, index: number | undefined) {
    this.#model = model
    this.#choice = choice
    this.#call = call
    this.index = index
  }

  get hasText(): boolean {
    return this.#isWritten || this.#held.trim() !== ''
  }

  get isClosed(): boolean {
    return !this.#isCustom && this.#scan.isClosed
  }

  read({ id, name, text, isCustom, extra }: CallDelta, ids: Set<string>, out: GenerateEvent[]): void {
    if (id !== '' && this.wireId === '') {
      this.wireId = id
      if (!ids.has(id)) this.id = id
      ids.add(id)
    }
    if (isCustom) this.#isCustom = true
    if (name !== '' && this.name === '') {
      this.name = name
      const custom = this.#isCustom ? { custom: true } : {}
      const more = extra ? { extra } : {}
      out.push({ type: 'tool_call', choice: this.#choice, call: this.#call, id: this.id, name, ...custom, ...more })
    }
    if (text === '') return
    if (this.#written.length + this.#held.length + text.length > ARGUMENTS_CHARS_MAX)
      throw answerError(this.#model, 'called a tool with arguments that are too long')
    this.#scan.push(text)
    this.#held += text
    if (this.name !== '') this.#push(out)
  }

  end(out: GenerateEvent[]): boolean {
    if (!this.#isWritten && !this.#isCustom) this.#held = heldArguments(this.#held)
    this.#isWritten = true
    this.#push(out)
    return this.#isCustom || objectIn(this.#written) !== undefined
  }

  #push(out: GenerateEvent[]): void {
    if (!this.#isWritten && !this.#isCustom) {
      this.#isQuoted ||= this.#held.trimStart().startsWith('"')
      if (this.#isQuoted || /^\s*(n|nu|nul|null\s*)?$/.test(this.#held)) return
    }
    const text = this.#text.push(this.#held)
    this.#held = ''
    if (text === '') return
    this.#isWritten = true
    this.#written += text
    out.push({ type: 'tool_arguments', choice: this.#choice, call: this.#call, text })
  }
}

/** Arguments that begin as no object does: none at all, null, or an object inside a string, which some servers send. */
function heldArguments(held: string): string {
  const text = held.trim()
  if (text === '' || text === 'null' || text === '""') return '{}'
  try {
    const inner: unknown = JSON.parse(text)
    if (typeof inner === 'string' && objectIn(inner)) return inner
  } catch {
    // A string that broke off.
  }
  return held
}

/** Finds where an object ends, without parsing it again with each delta. */
class ObjectScan {
  #depth = 0
  #isString = false
  #isEscaped = false
  #chars = 0
  isClosed = false

  push(text: string): void {
    this.#chars += text.length
    if (this.#chars > SCANNED_CHARS_MAX) return
    for (const char of text) {
      if (this.#isEscaped) this.#isEscaped = false
      else if (char === '\\') this.#isEscaped = this.#isString
      else if (char === '"') this.#isString = !this.#isString
      else if (!this.#isString && char === '{') this.#depth += 1
      else if (!this.#isString && char === '}') {
        this.#depth -= 1
        this.isClosed = this.#depth === 0
      }
    }
  }
}
