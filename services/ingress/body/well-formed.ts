import { ServiceError } from '#shared/error.ts'

/*
 * Two things are done before any schema sees a body: nesting is bounded, so that no later walk (zod, JSON.stringify into a
 * queue record) can exhaust the stack, and lone surrogates become U+FFFD, because such a string has no UTF-8 form and would
 * change silently on its first hop.
 */

/** Deepest nesting of a request body; JSON Schemas in tools stay far below. */
export const DEPTH_MAX = 128

/**
 * A JSON value without lone surrogates: the same one where it has none.
 *
 * @param depth Levels around it; 0 for a body
 * @throws ServiceError `invalid_value` when it is nested too deep
 */
export function wellFormed(value: unknown, depth: number): unknown {
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
  let hasChanged = false
  const entries = Object.entries(object)
  for (const entry of entries) {
    const sound = wellFormed(entry[1], depth + 1)
    if (sound === entry[1] && entry[0].isWellFormed()) continue
    hasChanged = true
    entry[0] = entry[0].toWellFormed()
    entry[1] = sound
  }
  return hasChanged ? Object.fromEntries(entries) : object
}
