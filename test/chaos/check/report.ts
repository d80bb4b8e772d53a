import { createHash } from 'node:crypto'

/** A report, without what tells it from that of the same question with another tag. */
export interface Report {
  readonly text: string
  /** Of what it says and cites. */
  readonly report: string
}

/**
 * Reads the report in the answer of a research; undefined where there is none.
 *
 * @param tag The word by which its question differs from others; as long as theirs, so that all stands at the same place.
 */
export function reportOf(answer: unknown, tag: string): Report | undefined {
  const { choices } = (answer ?? {}) as { choices?: { message?: { content?: string; annotations?: unknown[] } }[] }
  const { content, annotations = [] } = choices?.[0]?.message ?? {}
  if (content === undefined) return undefined
  // The hash of a source is that of its tag as well; its quote, and where that stands, are compared.
  const said = JSON.stringify([content, annotations], (name, value) => (name === 'source_sha256' ? undefined : value))
  return { text: content, report: hashOf(said.replaceAll(tag, 'TAG')) }
}

/** Short, for people who compare two of them. */
export function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}
