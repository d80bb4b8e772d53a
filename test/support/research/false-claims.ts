/*
 * Builds false claims, as a model might make them, from a true sentence. Tests check that the research code detects them. The research code shares no
 * function with this file, because a common error would hide a false claim.
 */

export const FALSIFICATIONS = [
  'number',
  'name',
  'negation',
  'reworded denial',
  'opposite',
  'attribution',
  'other page',
  'no such quote',
] as const
export type Falsification = (typeof FALSIFICATIONS)[number]

/** A sentence of a source, as it is quoted in the prompt of a model. */
export interface Quote {
  readonly id: string
  readonly text: string
}

const VERB = /\b(is|are|was|were|can|will|has|have|may|must|should)\b(?! not)/
/** Words that reverse the meaning of a sentence when they are replaced. */
const OPPOSITES: readonly (readonly [RegExp, string])[] = [
  [/\ballowed\b/i, 'forbidden'],
  [/\bbefore\b/i, 'after'],
  [/\bafter\b/i, 'before'],
  [/\bmore\b/i, 'less'],
  [/\balways\b/i, 'sometimes'],
  [/\bfirst\b/i, 'last'],
  [/\bmost\b/i, 'few'],
  [/\binclud(?:es|ed|ing)\b/i, 'excludes'],
  [/\benabled?\b/i, 'disabled'],
  [/\badded\b/i, 'removed'],
  [/\bnew\b/i, 'old'],
]

/**
 * Returns a false claim and the quotes that it cites. Undefined if the sentence has no word to falsify in this way.
 *
 * @param other A quote of another page
 */
export function falsify(
  kind: Falsification,
  { id, text }: Quote,
  other: Quote | undefined,
): { text: string; quotes: string[] } | undefined {
  const claim = claimOf(kind, text, other)
  if (claim === undefined || claim === text) return undefined
  return { text: claim, quotes: [kind === 'no such quote' ? 'q99' : id] }
}

function claimOf(kind: Falsification, text: string, other: Quote | undefined): string | undefined {
  const lower = text.charAt(0).toLowerCase() + text.slice(1)
  if (kind === 'number') return text.replace(/\b\d+\b/, (number) => String(Number(number) + 3))
  if (kind === 'name') return text.replace(/(?<=[a-z,] )\p{Lu}\p{Ll}{2,}/u, 'Zorbax')
  if (kind === 'negation') return text.replace(VERB, '$1 not')
  if (kind === 'reworded denial')
    return VERB.test(text)
      ? `In practice ${lower.replace(VERB, '$1 hardly ever').replace(/\bthe\b/g, 'such a')}`
      : undefined
  if (kind === 'opposite') {
    const [pattern, word] = OPPOSITES.find(([own]) => own.test(text)) ?? []
    return pattern && word && `As a rule ${lower.replace(pattern, word)}`
  }
  if (kind === 'attribution') return `According to Gartner, ${lower}`
  return other?.text
}
