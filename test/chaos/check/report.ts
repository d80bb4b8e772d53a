import { createHash } from 'node:crypto'

/** A report in which the unique tag of its question is replaced by a constant word. Reports of all researches then have the same hash. */
export interface Report {
  readonly text: string
  /** Hash of the text and its citations. */
  readonly report: string
}

/**
 * Reads the report from the result of a research. Returns undefined if there is none.
 *
 * @param tag Unique word of the question. All tags have the same length, so that the offsets in all reports are equal.
 */
export function reportOf(answer: unknown, tag: string): Report | undefined {
  const { choices } = (answer ?? {}) as { choices?: { message?: { content?: string; annotations?: unknown[] } }[] }
  const { content, annotations = [] } = choices?.[0]?.message ?? {}
  if (content === undefined) return undefined
  // The hash of a source page differs for each tag, so it is left out of the comparison. Quotes and offsets are compared.
  const said = JSON.stringify([content, annotations], (name, value) => (name === 'source_sha256' ? undefined : value))
  return { text: content, report: hashOf(said.replaceAll(tag, 'TAG')) }
}

/** A short hash that people can compare. */
export function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}
