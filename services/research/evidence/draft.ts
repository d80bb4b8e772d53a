import type { Quote } from './evidence.ts'

export interface Claim {
  readonly text: string
  readonly quotes: readonly Quote[]
  /** Subject shown before a statement that lacks its subject, such as the term of a definition or the header of a table. */
  readonly context?: string
}

export interface Draft {
  readonly writer: 'extractive' | 'model'
  readonly summary: readonly Claim[]
  readonly sections: readonly { readonly title: string; readonly claims: readonly Claim[] }[]
  readonly differences?: readonly Claim[]
  readonly gaps: readonly string[]
  /** Counts of the claims that failed the check: `quoted` were replaced by one of their quotes, and `dropped` were removed. */
  readonly quoted: number
  readonly dropped: number
}

export function claimsOf({ summary, sections, differences = [] }: Draft): Claim[] {
  return [...summary, ...sections.flatMap(({ claims }) => claims), ...differences]
}

/**
 * Removes the least important claim, to shorten the report. The last claim of the sections goes first, then the differences between
 * sources, then the claims of the summary.
 */
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
