import { z } from 'zod'
import { ServiceError } from '#shared/error.ts'
import { DEPTH_MAX } from '#shared/json/shape.ts'
import { excerpt, problemError, type Wording } from './problem.ts'

/*
 * From a parsed JSON body to a checked one, or to the first problem in the words of the format.
 *
 * Two things are done before any schema sees a body: nesting is bounded, so that no later walk (zod, JSON.stringify into a
 * queue record) can exhaust the stack, and lone surrogates become U+FFFD, because such a string has no UTF-8 form and would
 * change silently on its first hop.
 */

/** Work that can be interrupted: it yields between its pieces, each a few milliseconds long. */
export type Pieces<T> = Generator<void, T>

/** Longest list that any schema takes: it refuses a longer one before it looks inside. */
const MESSAGES_MAX = 100_000
/** Messages checked or decoded in one piece. */
export const PIECE_MESSAGES = 1_000
/** Levels around a message: the body and its list. */
const MESSAGE_DEPTH = 2

/** zod's own way to stop at the first problem, which its `validate` uses; its types do not show it to `safeParse`. */
const FIRST_PROBLEM: z.core.ParseContextInternal<z.core.$ZodIssue> = { abortEarly: true }

/**
 * Checks a body against a schema. Reports the first problem only, and ends there: a list of 100,000 wrong values costs as
 * much as one.
 *
 * @throws ServiceError a 400 with `param` set to the path, such as `messages[2].content[0].image_url.url`
 */
export function parseBody<T extends z.ZodType>(schema: T, body: unknown, wording: Wording): z.output<T> {
  return checkSound(schema, wellFormed(body, 0), wording)
}

/**
 * Checks one value of a body against a schema of its own, as {@link parseBody} does.
 *
 * @param path Where it stands, such as `input`, 3.
 */
export function parseAt<T extends z.ZodType>(schema: T, value: unknown, path: readonly PropertyKey[]): z.output<T> {
  const sound = wellFormed(value, path.length)
  const result = schema.safeParse(sound, FIRST_PROBLEM)
  if (result.success) return result.data
  const issue = result.error.issues[0] as z.core.$ZodIssue
  const body = path.reduceRight<unknown>((inner, key) => ({ [key]: inner }), sound)
  throw problemError({ ...issue, path: [...path, ...issue.path] }, body, 'openai')
}

/** Checks a body that is well formed already. @throws ServiceError as {@link parseBody} does */
function checkSound<T extends z.ZodType>(schema: T, sound: unknown, wording: Wording): z.output<T> {
  if (schema instanceof z.ZodObject && isObject(sound)) checkMaps(schema, sound, wording)
  const result = schema.safeParse(sound, FIRST_PROBLEM)
  if (result.success) return result.data
  throw problemError(result.error.issues[0] as z.core.$ZodIssue, sound, wording)
}

/** Entries of a map that are checked at once. */
const PIECE_ENTRIES = 500

/** Long maps are checked in pieces: within one zod goes on to the end, and a finding costs more than its entry. */
function checkMaps(schema: z.ZodObject, body: Record<string, unknown>, wording: Wording): void {
  for (const [field, record] of mapsOf(schema)) {
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

/** The fields of each schema that are maps. */
const MAPS = new WeakMap<z.ZodObject, readonly (readonly [field: string, record: z.ZodRecord])[]>()

function mapsOf(schema: z.ZodObject): readonly (readonly [field: string, record: z.ZodRecord])[] {
  let maps = MAPS.get(schema)
  if (!maps) {
    maps = Object.entries(schema.shape).flatMap(([field, inner]) => {
      const record = recordIn(inner)
      return record ? [[field, record] as const] : []
    })
    MAPS.set(schema, maps)
  }
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
 * Checks a body as `parseBody` does, a long list of messages in pieces. Of a long list the first messages and all the rest
 * of the body come first, then the other messages in their order.
 *
 * @throws ServiceError a 400 with `param` set to the path of the first problem
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
  const { messages } = sound
  yield
  const head = checkSound(schema, { ...sound, messages: messages.slice(0, PIECE_MESSAGES) }, wording)
  const checked: unknown[] = [...(head.messages as unknown[])]
  for (let at = PIECE_MESSAGES; at < messages.length; at += PIECE_MESSAGES) {
    yield
    for (const message of checkMessages(schema.shape.messages, sound, [at, at + PIECE_MESSAGES], wording))
      checked.push(message)
  }
  return { ...head, messages: checked }
}

/** Checks the messages of a well-formed body from one index up to another. @throws ServiceError as {@link parseBody} does */
function checkMessages<T extends z.ZodArray>(
  schema: T,
  body: { readonly messages: readonly unknown[] },
  [from, to]: readonly [number, number],
  wording: Wording,
): z.output<T> {
  const result = schema.safeParse(body.messages.slice(from, to), FIRST_PROBLEM)
  if (result.success) return result.data
  const issue = result.error.issues[0] as z.core.$ZodIssue
  const [index, ...path] = issue.path
  throw problemError({ ...issue, path: ['messages', from + Number(index), ...path] }, body, wording)
}

/** {@link wellFormed}, a long list of messages in pieces. */
function* soundInPieces(body: { messages: unknown[] }): Pieces<{ messages: unknown[] }> {
  const { messages, ...rest } = body
  const sound: unknown[] = []
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    sound.push(wellFormed(message, MESSAGE_DEPTH))
  }
  return { ...(wellFormed(rest, 0) as object), messages: sound }
}

function hasLongList(body: unknown): body is { messages: unknown[] } {
  const messages = (body as { messages?: unknown } | null)?.messages
  return Array.isArray(messages) && messages.length > PIECE_MESSAGES && messages.length <= MESSAGES_MAX
}

/**
 * A JSON value without lone surrogates: the same one where it has none.
 *
 * @param depth Levels around it; 0 for a body
 * @throws ServiceError `invalid_value` when it is nested too deep
 */
function wellFormed(value: unknown, depth: number): unknown {
  if (typeof value === 'string') return value.toWellFormed()
  if (typeof value !== 'object' || value === null) return value
  if (depth === DEPTH_MAX) {
    throw new ServiceError('invalid_value', `The request body is nested more than ${DEPTH_MAX} levels deep.`)
  }
  return Array.isArray(value) ? wellFormedArray(value, depth) : wellFormedObject(value, depth)
}

function wellFormedArray(array: unknown[], depth: number): unknown[] {
  let copy: unknown[] | undefined
  for (let i = 0; i < array.length; i++) {
    const sound = wellFormed(array[i], depth + 1)
    if (sound === array[i]) continue
    copy ??= [...array]
    copy[i] = sound
  }
  return copy ?? array
}

function wellFormedObject(object: object, depth: number): object {
  const values = object as Record<string, unknown>
  const keys = Object.keys(object)
  let copy: [string, unknown][] | undefined
  for (let i = 0; i < keys.length; i++) {
    const key = keys[i] as string
    const sound = wellFormed(values[key], depth + 1)
    if (!copy && sound === values[key] && key.isWellFormed()) continue
    copy ??= keys.slice(0, i).map((before) => [before, values[before]])
    copy.push([key.toWellFormed(), sound])
  }
  return copy ? Object.fromEntries(copy) : object
}

/**
 * Refuses the first field that a schema does not know. A misspelt wish would be granted in silence: what is asked here
 * belongs to us, not to an upstream that may know more.
 *
 * @param path Put before its name, such as `webhook.`.
 * @throws ServiceError `unsupported_parameter`
 */
export function refuseUnknown(schema: z.ZodObject, value: unknown, path = ''): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return
  const unknown = Object.keys(value).find((field) => !Object.hasOwn(schema.shape, field))
  if (unknown === undefined) return
  const param = path + excerpt(unknown)
  throw new ServiceError('unsupported_parameter', `Unknown parameter: '${param}'.`, { param })
}

/**
 * What of an object goes along to an upstream of the same dialect: all but `consumed`. Null counts as absent.
 *
 * @returns undefined when nothing is left
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
