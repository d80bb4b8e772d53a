import { z } from 'zod'
import { ServiceError } from '#shared/error.ts'
import { excerpt, problemError, type Wording } from './problem.ts'
import { wellFormed } from './well-formed.ts'

/** From a parsed JSON body to a checked one, or to the first problem in the words of the format. */

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

/** Checks a body that is well formed already. @throws ServiceError as {@link parseBody} does */
export function checkSound<T extends z.ZodType>(schema: T, sound: unknown, wording: Wording): z.output<T> {
  if (schema instanceof z.ZodObject && isObject(sound)) checkMaps(schema, sound, wording)
  const result = schema.safeParse(sound, FIRST_PROBLEM)
  if (result.success) return result.data
  throw problemError(result.error.issues[0] as z.core.$ZodIssue, sound, wording)
}

/** Entries of a map that are checked at once. */
const PIECE_ENTRIES = 500

/** Long maps are checked in pieces: within one zod goes on to the end, and a finding costs more than its entry. */
function checkMaps(schema: z.ZodObject, body: Record<string, unknown>, wording: Wording): void {
  for (const [field, map] of Object.entries(body)) {
    const record = Object.hasOwn(schema.shape, field) ? recordIn(schema.shape[field]) : undefined
    if (!record || !isObject(map)) continue
    const keys = Object.keys(map)
    for (let at = 0; keys.length > PIECE_ENTRIES && at < keys.length; at += PIECE_ENTRIES) {
      const piece = Object.fromEntries(keys.slice(at, at + PIECE_ENTRIES).map((key) => [key, map[key]]))
      const issue = record.safeParse(piece).error?.issues[0]
      if (issue) throw problemError({ ...issue, path: [field, ...issue.path] }, body, wording)
    }
  }
}

function recordIn(schema: z.core.$ZodType | undefined): z.ZodRecord | undefined {
  if (schema instanceof z.ZodOptional || schema instanceof z.ZodNullable) return recordIn(schema.unwrap())
  return schema instanceof z.ZodRecord ? schema : undefined
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Checks the messages of a well-formed body from one index up to another. @throws ServiceError as {@link parseBody} does */
export function checkMessages<T extends z.ZodArray>(
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
  const left = Object.entries(object).filter(
    ([key, value]) => value !== null && value !== undefined && !consumed.has(key) && key !== '__proto__',
  )
  return left.length === 0 ? undefined : Object.fromEntries(left)
}
