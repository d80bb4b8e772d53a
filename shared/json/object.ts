import { runToEnd } from '#shared/yielding.ts'
import { refuseShape } from './shape.ts'

/** Characters of a text whose shape is looked at before it is parsed; a shorter one cannot hold up anybody. */
const SMALL_CHARS = 1_024

/**
 * The object that a text of somebody else spells in JSON, such as a model's arguments of a tool.
 *
 * @returns undefined where it spells none, and where it holds too much or is nested too deep (`shape.ts`).
 */
export function objectIn(text: string): Record<string, unknown> | undefined {
  try {
    if (text.length > SMALL_CHARS) runToEnd(refuseShape(Buffer.from(text)))
    const value: unknown = JSON.parse(text)
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    return isObject ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined // Cut by a token limit, or written wrongly: the caller decides.
  }
}
