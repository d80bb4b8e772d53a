import { createHash } from 'node:crypto'

/** A report without the tag of its question, so that reports of different tags can be compared. */
export interface Report {
  readonly text: string
  /** Hash of the text and its citations. */
  readonly report: string
}

/**
 * Reads the report from the response of a research; undefined without one.
 *
 * @param tag Word by which the question differs from others. All tags have one length, so that offsets in reports are equal.
 */
export function reportOf(answer: unknown, tag: string): Report | undefined {
  const { choices } = (answer ?? {}) as { choices?: { message?: { content?: string; annotations?: unknown[] } }[] }
  const { content, annotations = [] } = choices?.[0]?.message ?? {}
  if (content === undefined) return undefined
  // The hash of a source depends on the tag, so only its quote and the offsets are compared.
  const said = JSON.stringify([content, annotations], (name, value) => (name === 'source_sha256' ? undefined : value))
  return { text: content, report: hashOf(said.replaceAll(tag, 'TAG')) }
}

/** A short hash that people can compare. */
export function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}
