import { runToEnd } from '#shared/lib/yielding.ts'
import { refuseShape } from './read.ts'

/**
 * Maximum characters of a text that is parsed in one step. For a longer text, size and nesting are checked first, because parsing it could block the
 * event loop.
 */
const SMALL_CHARS = 1_024

/**
 * Parses an untrusted text as a JSON object, such as a model's tool arguments.
 *
 * @returns Undefined if the text is not an object, or is too large or too deeply nested (`read.ts`)
 */
export function objectIn(text: string): Record<string, unknown> | undefined {
  if (!/^\s*\{/.test(text)) return undefined
  try {
    if (text.length > SMALL_CHARS) runToEnd(refuseShape(Buffer.from(text)))
    const value: unknown = JSON.parse(text)
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    return isObject ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined // The model wrote invalid JSON, or a token limit truncated the text. The caller handles both.
  }
}
