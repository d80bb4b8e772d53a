import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { objectIn } from '#shared/json/object.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'

/** Maximum tool calls of one choice. Each delta is compared with all calls, so the number is bounded. No model makes as many. */
const CALLS_MAX = 1_024
/** Maximum characters of the arguments of one call. Arguments that arrive before the name are buffered up to this length. */
const ARGUMENTS_CHARS_MAX = 8 * 1024 * 1024
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
  parameters?: unknown
}

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
  readonly keepsExtra: boolean
}

/**
 * Tool calls of one choice, in the forms of many servers.
 *
 * OpenAI numbers the calls, and the first delta of a call has its id and name. Other servers omit the number or the id, or give every call the number
 * 0 or the same id. Some repeat the name in each delta, or send arguments as an object.
 *
 * A delta with a name therefore belongs to the previous call only if the arguments of that call are not yet a complete object. Example: `f {"a":1}`
 * and then `g {"b":2}`, both with index 0 and without an id, are two calls.
 */
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

  read(entries: unknown, isWhole: boolean, out: GenerateEvent[]): void {
    const listed = Array.isArray(entries) ? entries : [entries]
    for (const entry of listed) {
      if (typeof entry !== 'object' || entry === null) continue
      const delta = readDelta(entry as WireToolCall, this.#options.keepsExtra)
      const call = (isWhole ? undefined : this.#find(delta)) ?? this.#add(delta)
      if (!isWhole) call.scan(delta)
      call.read(delta, this.#ids, out)
    }
  }

  /**
   * Ends the calls and emits their buffered arguments.
   *
   * @returns False if the arguments of a call are not a JSON object, which means that they were truncated
   * @throws ServiceError if a call has no name
   */
  *end(out: GenerateEvent[]): Generator<undefined, boolean> {
    let areWhole = true
    for (const call of this.#calls) {
      if (call.name === '') throw answerError(this.#options.model, 'called a tool without a name')
      areWhole = call.end(out) && areWhole
      yield
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

class CallState {
  readonly index: number | undefined
  readonly #model: string
  readonly #choice: number
  readonly #call: number
  readonly #text = new SurrogateBuffer()
  readonly #scan = new ObjectScan()
  /** The id that the server sent. Some servers send one id for several calls. */
  wireId = ''
  /** Id that is unique within the choice. If the id is empty, then the encoder generates one. */
  id = ''
  name = ''
  #isCustom = false
  #isWritten = false
  #isQuoted = false
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

  scan({ text }: CallDelta): void {
    this.#scan.push(text)
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
      throw answerError(this.#model, `called a tool with arguments of more than ${ARGUMENTS_CHARS_MAX} characters`)
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

/** Normalises arguments that do not begin with `{`: empty, null, or an object inside a string, which some servers send. */
function heldArguments(held: string): string {
  const text = held.trim()
  if (text === '' || text === 'null' || text === '""') return '{}'
  try {
    const inner: unknown = JSON.parse(text)
    if (typeof inner === 'string' && objectIn(inner)) return inner
  } catch {
    // Parsing failed because the string is truncated, so the text is returned unchanged.
  }
  return held
}

/** Finds the end of an object while the text arrives. Parsing the text again for each delta would take quadratic time. */
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
