import type { Quote } from './evidence/evidence.ts'

/** One statement of a report, and the sentences that support it. */
export interface Claim {
  readonly text: string
  /** At least one. */
  readonly quotes: readonly Quote[]
  /** What the statement is about, if it does not say so: the term of a definition, the header of a table. Shown before it. */
  readonly context?: string
}

/** A report before its Markdown: statements with their quotes, without the places where they stand. */
export interface Draft {
  readonly writer: 'extractive' | 'model'
  /** The answer, at the beginning of the report. */
  readonly summary: readonly Claim[]
  readonly sections: readonly { readonly title: string; readonly claims: readonly Claim[] }[]
  /** Quotes that give other values than the answer. */
  readonly differences?: readonly Claim[]
  readonly gaps: readonly string[]
  /** Claims that failed the check and are quoted instead; that were left out. */
  readonly quoted: number
  readonly dropped: number
}

/** All claims of a draft, in order. */
export function claimsOf({ summary, sections, differences = [] }: Draft): Claim[] {
  return [...summary, ...sections.flatMap(({ claims }) => claims), ...differences]
}

/** The same draft without the claim that matters least: the last one of the sections, then differences, then the answer. */
export function withoutLast(draft: Draft): Draft {
  const { sections, differences = [], summary } = draft
  const last = sections.at(-1)
  if (last) {
    const claims = last.claims.slice(0, -1)
    const before = sections.slice(0, -1)
    return { ...draft, sections: claims.length === 0 ? before : [...before, { ...last, claims }] }
  }
  if (differences.length > 0) return { ...draft, differences: differences.slice(0, -1) }
  return { ...draft, summary: summary.slice(0, -1) }
}
