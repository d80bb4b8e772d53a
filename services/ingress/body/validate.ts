import { z } from 'zod'
import { DEPTH_MAX } from '#shared/json/read.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { deepest, excerpt, problemError, type Wording } from './problem.ts'

/*
 * Validation of a parsed JSON body. Returns the checked body, or throws its first problem in the style of the API.
 *
 * Two steps precede the check against the schema:
 *
 * 1. Nesting is limited, so that later recursion (zod, JSON.stringify) cannot exhaust the stack.
 *
 * 2. Lone surrogates become U+FFFD. UTF-8 cannot represent them, and encoding would replace them without an error.
 *
 * A schema check is synchronous. Checking 100,000 messages at once would block the event loop for seconds. Long lists
 * of messages are therefore checked in pieces of {@link PIECE_MESSAGES}, with an event-loop yield after each.
 */

/** Work that yields to the event loop after each piece of a few milliseconds. */
export type Pieces<T> = Generator<void, T>

/**
 * Maximum length of a list of messages that is checked in pieces. All schemas refuse longer lists before reading the
 * entries.
 */
const MESSAGES_MAX = 100_000
/** Maximum messages and parts that are checked or decoded between two event-loop yields. */
export const PIECE_MESSAGES = 1_000
const MESSAGE_DEPTH = 2
const PART_DEPTH = MESSAGE_DEPTH + 2

/**
 * Option of zod to stop at the first problem. The types of `safeParse` lack this option, although `safeParse` accepts
 * it.
 */
const FIRST_PROBLEM: z.core.ParseContextInternal<z.core.$ZodIssue> = { abortEarly: true }

/**
 * Checks a body against a schema and reports only the first problem. A list of 100,000 wrong values therefore costs no
 * more than one wrong value.
 *
 * @throws ServiceError a 400 whose `param` is the path, such as `messages[2].content[0].image_url.url`
 */
export function parseBody<T extends z.ZodType>(schema: T, body: unknown, wording: Wording): z.output<T> {
  return checkSound(schema, wellFormed(body, 0), wording)
}

export function parseAt<T extends z.ZodType>(schema: T, value: unknown, path: readonly PropertyKey[]): z.output<T> {
  const sound = wellFormed(value, path.length)
  const result = schema.safeParse(sound, FIRST_PROBLEM)
  if (result.success) return result.data
  const issue = result.error.issues[0] as z.core.$ZodIssue
  const body = path.reduceRight<unknown>((inner, key) => ({ [key]: inner }), sound)
  throw problemError({ ...issue, path: [...path, ...issue.path] }, body, 'openai')
}

function checkSound<T extends z.ZodType>(schema: T, sound: unknown, wording: Wording): z.output<T> {
  if (schema instanceof z.ZodObject && isObject(sound)) checkMaps(schema, sound, wording)
  const result = schema.safeParse(sound, FIRST_PROBLEM)
  if (result.success) return result.data
  throw problemError(result.error.issues[0] as z.core.$ZodIssue, sound, wording)
}

const PIECE_ENTRIES = 500

/**
 * Checks long maps in pieces, and stops after the first piece with a problem. Zod ignores {@link FIRST_PROBLEM} inside a
 * map, and collecting every problem of a long map takes long.
 */
function checkMaps(schema: z.ZodObject, body: Record<string, unknown>, wording: Wording): void {
  for (const [field, record] of MAPS.get(schema) ?? findMaps(schema)) {
    const map = body[field]
    if (!isObject(map)) continue
    const keys = Object.keys(map)
    for (let at = 0; keys.length > PIECE_ENTRIES && at < keys.length; at += PIECE_ENTRIES) {
      const piece = Object.fromEntries(keys.slice(at, at + PIECE_ENTRIES).map((key) => [key, map[key]]))
      const issue = record.safeParse(piece).error?.issues[0]
      if (issue) throw problemError({ ...issue, path: [field, ...issue.path] }, body, wording)
    }
  }
}

const MAPS = new WeakMap<z.ZodObject, readonly (readonly [field: string, record: z.ZodRecord])[]>()

function findMaps(schema: z.ZodObject): readonly (readonly [field: string, record: z.ZodRecord])[] {
  const maps = Object.entries(schema.shape).flatMap(([field, inner]) => {
    const record = recordIn(inner)
    return record ? [[field, record] as const] : []
  })
  MAPS.set(schema, maps)
  return maps
}

function recordIn(schema: z.core.$ZodType | undefined): z.ZodRecord | undefined {
  if (schema instanceof z.ZodOptional || schema instanceof z.ZodNullable) return recordIn(schema.unwrap())
  return schema instanceof z.ZodRecord ? schema : undefined
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/**
 * Part of the body that is checked at once: one message, some parts of a long message, or some blocks of one long part
 * (`tool_result`).
 */
interface Portion {
  readonly index: number
  readonly message: unknown
  readonly offset: number
  readonly inner: number
  readonly weight: number
}

/**
 * Checks a body like {@link parseBody}, but divides a long list of messages into pieces, with an event-loop yield after
 * each. The first piece also contains all other fields of the body.
 *
 * @throws ServiceError a 400 whose `param` is the path of the first problem
 */
export function* parseInPieces<T extends z.ZodObject<{ messages: z.ZodArray }>>(
  schema: T,
  body: unknown,
  wording: Wording,
): Pieces<z.output<T>> {
  if (!hasLongList(body)) {
    const sound = wellFormed(body, 0)
    yield
    return checkSound(schema, sound, wording)
  }
  const sound = yield* soundInPieces(body)
  const [first = [], ...others] = piecesOf(sound.messages)
  yield
  const head = checkSound(schema, { ...sound, messages: first.map(({ message }) => message) }, wording)
  const checked: unknown[] = []
  for (const [nth, message] of (head.messages as unknown[]).entries()) put(checked, first[nth], message)
  for (const piece of others) {
    yield
    const messages = checkPiece(schema.shape.messages, piece, sound, wording)
    for (const [nth, message] of messages.entries()) put(checked, piece[nth], message)
  }
  return { ...head, messages: checked }
}

function piecesOf(messages: readonly unknown[]): Portion[][] {
  const pieces: Portion[][] = []
  let weight = Number.POSITIVE_INFINITY
  for (const portion of portionsOf(messages)) {
    weight += portion.weight
    if (weight > PIECE_MESSAGES) {
      pieces.push([])
      weight = portion.weight
    }
    pieces.at(-1)?.push(portion)
  }
  return pieces
}

function* portionsOf(messages: readonly unknown[]): Generator<Portion> {
  for (const [index, message] of messages.entries()) {
    const weight = weightOf(message)
    if (weight <= PIECE_MESSAGES) yield { index, message, offset: 0, inner: 0, weight }
    else yield* portionsOfMessage(message as object, index)
  }
}

/**
 * Splits a long message into portions. Lists and objects in fields other than `content` are only in the first portion,
 * so that they are checked once.
 */
function* portionsOfMessage(message: object, index: number): Generator<Portion> {
  const parts = partsOf(message)
  const portion = (content: readonly unknown[], offset: number, inner: number, weight: number): Portion => {
    const fields = offset + inner === 0 ? message : scalarsOf(message)
    return { index, message: { ...fields, content }, offset, inner, weight }
  }
  for (let offset = 0; offset < parts.length; ) {
    const part = parts[offset] as object
    const within = partsOf(part)
    if (within.length > PIECE_MESSAGES) {
      for (let inner = 0; inner < within.length; inner += PIECE_MESSAGES) {
        const fields = inner === 0 ? part : scalarsOf(part)
        const content = within.slice(inner, inner + PIECE_MESSAGES)
        yield portion([{ ...fields, content }], offset, inner, PIECE_MESSAGES)
      }
      offset++
      continue
    }
    const from = offset
    let weight = 0
    do weight += 1 + partsOf(parts[offset++]).length
    while (offset < parts.length && weight + partsOf(parts[offset]).length < PIECE_MESSAGES)
    yield portion(parts.slice(from, offset), from, 0, weight)
  }
}

function weightOf(message: unknown): number {
  let weight = 1
  for (const part of partsOf(message)) weight += 1 + partsOf(part).length
  return weight
}

function partsOf(message: unknown): readonly unknown[] {
  const content = isObject(message) ? message.content : undefined
  return Array.isArray(content) ? content : []
}

function scalarsOf(message: object): object {
  return Object.fromEntries(Object.entries(message).filter(([, value]) => typeof value !== 'object'))
}

function put(checked: unknown[], portion: Portion | undefined, message: unknown): void {
  const { index, offset, inner } = portion ?? { index: 0, offset: 0, inner: 0 }
  if (offset + inner === 0) return void checked.push(message)
  const parts = partsOf(checked[index])
  const [into, more] = inner === 0 ? [parts, partsOf(message)] : [partsOf(parts[offset]), partsOf(partsOf(message)[0])]
  for (const part of more) (into as unknown[]).push(part)
}

function checkPiece<T extends z.ZodArray>(schema: T, piece: readonly Portion[], body: unknown, wording: Wording) {
  const result = schema.safeParse(
    piece.map(({ message }) => message),
    FIRST_PROBLEM,
  )
  if (result.success) return result.data as unknown[]
  const [first] = result.error.issues as [z.core.$ZodIssue]
  const issue = first.code === 'invalid_key' ? first : deepest(first)
  const [nth, ...path] = issue.path
  const { index, offset, inner } = piece[Number(nth)] as Portion
  if (typeof path[1] === 'number') path[1] += offset
  if (typeof path[3] === 'number') path[3] += inner
  throw problemError({ ...issue, path: ['messages', index, ...path] }, body, wording)
}

export function* mapInPieces<Entry, Result>(
  list: readonly Entry[],
  map: (entry: Entry, index: number) => Result,
): Pieces<Result[]> {
  const mapped: Result[] = []
  for (const [index, entry] of list.entries()) {
    if (index > 0 && index % PIECE_MESSAGES === 0) yield
    mapped.push(map(entry, index))
  }
  return mapped
}

function* soundInPieces(body: { messages: unknown[] }): Pieces<{ messages: unknown[] }> {
  const { messages, ...rest } = body
  const sound: unknown[] = []
  let weight = 0
  for (const message of messages) {
    const parts = partsOf(message)
    weight += 1 + parts.length
    if (weight > PIECE_MESSAGES) {
      weight = 0
      yield
    }
    if (parts.length <= PIECE_MESSAGES) sound.push(wellFormed(message, MESSAGE_DEPTH))
    else {
      const content = yield* mapInPieces(parts, (part) => wellFormed(part, PART_DEPTH))
      sound.push({ ...(wellFormed({ ...(message as object), content: [] }, MESSAGE_DEPTH) as object), content })
    }
  }
  return { ...(wellFormed(rest, 0) as object), messages: sound }
}

function hasLongList(body: unknown): body is { messages: unknown[] } {
  const messages = (body as { messages?: unknown } | null)?.messages
  if (!Array.isArray(messages) || messages.length > MESSAGES_MAX) return false
  let weight = 0
  return messages.some((message) => {
    weight += weightOf(message)
    return weight > PIECE_MESSAGES
  })
}

/**
 * Replaces lone surrogates in a JSON value. Returns the value itself if there are none.
 *
 * @param depth Number of nesting levels around the value; 0 for a body
 * @throws ServiceError `invalid_value` if the value is nested too deeply
 */
function wellFormed(value: unknown, depth: number): unknown {
  if (typeof value === 'string') return value.toWellFormed()
  if (typeof value !== 'object' || value === null) return value
  if (depth === DEPTH_MAX) {
    throw new ServiceError('invalid_value', `The request body is nested more than ${DEPTH_MAX} levels deep.`)
  }
  if (Array.isArray(value)) {
    let copy: unknown[] | undefined
    for (let i = 0; i < value.length; i++) {
      const sound = wellFormed(value[i], depth + 1)
      if (sound === value[i]) continue
      copy ??= [...value]
      copy[i] = sound
    }
    return copy ?? value
  }
  const values = value as Record<string, unknown>
  const keys = Object.keys(value)
  let copy: [string, unknown][] | undefined
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i] as string
    const sound = wellFormed(values[key], depth + 1)
    if (!copy && sound === values[key] && key.isWellFormed()) continue
    copy ??= keys.slice(0, i).map((before) => [before, values[before]])
    copy.push([key.toWellFormed(), sound])
  }
  return copy ? Object.fromEntries(copy) : value
}

/**
 * Refuses the first field that the schema does not define. Otherwise a misspelt option would be ignored without an
 * error.
 *
 * Only for endpoints that Sluice itself defines, because requests in the format of a vendor may contain fields for the
 * upstream.
 *
 * @param path Prefix of the field name in the error, such as `webhook.`
 * @throws ServiceError `unsupported_parameter` with the name of the unknown field
 */
export function refuseUnknown(schema: z.ZodObject, value: unknown, path = ''): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return
  const unknown = Object.keys(value).find((field) => !Object.hasOwn(schema.shape, field))
  if (unknown === undefined) return
  const param = path + excerpt(unknown)
  throw new ServiceError('unsupported_parameter', `Unknown parameter: '${param}'.`, { param })
}

/**
 * Returns the fields of a request that Sluice does not interpret. An upstream with the API of the request receives these
 * fields unchanged. Fields with null count as absent.
 *
 * @param consumed Fields that Sluice interprets, which are left out
 * @returns Undefined if no field is left
 */
export function extraOf(object: object, consumed: ReadonlySet<string>): Record<string, unknown> | undefined {
  let left: Record<string, unknown> | undefined
  for (const [key, value] of Object.entries(object)) {
    if (value === null || value === undefined || consumed.has(key) || key === '__proto__') continue
    left ??= {}
    left[key] = value
  }
  return left
}
