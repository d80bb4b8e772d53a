/** Requests and answers of the scripted model of an agent test, independent of the three APIs. */

export type Json = Record<string, unknown>

/** A tool that the model may call. */
export interface Offer {
  readonly name: string
  /** Responses API only: namespace of the tool. */
  readonly namespace?: string | undefined
  /** The input is free text, not a JSON object. */
  readonly isCustom: boolean
  /** Names of its parameters; none for a custom tool. */
  readonly parameters: readonly string[]
}

/** A tool call of an earlier answer, with its result. */
export interface Result {
  readonly name: string
  readonly output: string
}

/** One parsed, valid request. */
export interface Conversation {
  readonly offers: readonly Offer[]
  /** Whether the upstream is allowed to search the web itself. */
  readonly canSearch: boolean
  /** Tool calls in order, each with its result. */
  readonly results: readonly Result[]
  /** Number of reasoning items that the request sent back. */
  readonly thoughts: number
  /** Whether the caller requested reasoning. */
  readonly wantsThought: boolean
  readonly request: Json
}

/** One answer of the model. */
export interface Move {
  readonly thought?: string
  /** The upstream searches the web for this query before it continues. */
  readonly search?: string
  readonly text?: string
  readonly calls: readonly { readonly offer: Offer; readonly input: string | Json }[]
}

/** One frame of an event stream. */
export interface Frame {
  readonly event?: string
  readonly data: Json | '[DONE]'
}

/** Reads the requests of one API and writes its responses. Requests are validated strictly, as by the vendor's server. */
export interface Wire {
  readonly path: string
  /** @throws Refusal with the error message of the 400 response */
  read(body: Json, headers: Readonly<Record<string, string | string[] | undefined>>): Conversation
  frames(conversation: Conversation, move: Move): Iterable<Frame>
}

/** A request that the vendor's server answers with 400. */
export class Refusal extends Error {}

export function refuseIf(condition: boolean, message: string): void {
  if (condition) throw new Refusal(message)
}

/** Refuses fields that the vendor's server does not accept. */
export function refuseUnknown(value: Json, known: readonly string[], path: string): void {
  for (const name of Object.keys(value)) refuseIf(!known.includes(name), `Unknown parameter: '${path}${name}'.`)
}

export function refuseName(name: unknown, charsMax: number, path: string): asserts name is string {
  const isValid = typeof name === 'string' && name.length <= charsMax && /^[a-zA-Z0-9_-]+$/.test(name)
  refuseIf(!isValid, `Invalid '${path}': '${name}' does not match '^[a-zA-Z0-9_-]{1,${charsMax}}$'.`)
}

export function objectsOf(value: unknown, path: string): Json[] {
  const isList = Array.isArray(value) && value.every((item) => typeof item === 'object' && item !== null)
  refuseIf(!isList, `Invalid type for '${path}': expected an array of objects.`)
  return value as Json[]
}

export function parametersOf(schema: unknown, path: string): string[] {
  const { type, properties } = (schema ?? {}) as Json
  refuseIf(type !== 'object', `Invalid schema for '${path}': type must be 'object', got '${type}'.`)
  return Object.keys((properties ?? {}) as Json)
}

let made = 0
/** An id that is unique in this process. */
export function makeId(prefix: string): string {
  made += 1
  return `${prefix}${made.toString(36).padStart(24, '0')}`
}

/** Splits a text in two, so that clients must join deltas. */
export function piecesOf(text: string): string[] {
  const half = Math.ceil(text.length / 2)
  return [text.slice(0, half), text.slice(half)].filter((piece) => piece !== '')
}
