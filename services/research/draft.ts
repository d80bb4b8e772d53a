import type { Quote } from './evidence/evidence.ts'

/** One statement of a report, and the sentences that support it. */
export interface Claim {
  readonly text: string
  /** At least one. */
  readonly quotes: readonly Quote[]
}

/** A report before it is put into words of Markdown: whoever writes it says what and by which quotes, never where they stand. */
export interface Draft {
  readonly writer: 'extractive' | 'model'
  readonly summary: readonly Claim[]
  readonly sections: readonly { readonly title: string; readonly claims: readonly Claim[] }[]
  readonly gaps: readonly string[]
  /** Claims that failed the check and are quoted instead; that were left out. */
  readonly quoted: number
  readonly dropped: number
}

/** All claims of a draft, in order. */
export function claimsOf({ summary, sections }: Draft): Claim[] {
  return [...summary, ...sections.flatMap(({ claims }) => claims)]
}

/** The same draft without its last claim, which matters least; sections that are left empty go. */
export function withoutLast(draft: Draft): Draft {
  const last = draft.sections.at(-1)
  if (!last) return { ...draft, summary: draft.summary.slice(0, -1) }
  const claims = last.claims.slice(0, -1)
  const before = draft.sections.slice(0, -1)
  return { ...draft, sections: claims.length === 0 ? before : [...before, { ...last, claims }] }
}
