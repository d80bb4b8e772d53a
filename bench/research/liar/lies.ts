/*
 * Lies that a model may tell about a sentence: each is false by it. They share nothing with the check that must find them.
 */

/** How a claim lies; `none` keeps the sentence as it is. */
export const LIES = [
  'none',
  'number',
  'name',
  'negation',
  'reworded denial',
  'opposite',
  'attribution',
  'other page',
  'no such quote',
] as const
export type Lie = (typeof LIES)[number]

/** A sentence that a model sees, by its id. */
export interface Quote {
  readonly id: string
  readonly text: string
}

const VERB = /\b(is|are|was|were|can|will|has|have|may|must|should)\b(?! not)/
/** What stands for the opposite; only words that the sentence has itself. */
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

/** A claim that lies about a quote; undefined where the quote gives no occasion to. @param other A quote of something else */
export function lieOf(
  lie: Lie,
  { id, text }: Quote,
  other: Quote | undefined,
): { text: string; quotes: string[] } | undefined {
  const told = toldOf(lie, text, other)
  if (told === undefined || told === text) return undefined
  return { text: told, quotes: [lie === 'no such quote' ? 'q99' : id] }
}

function toldOf(lie: Lie, text: string, other: Quote | undefined): string | undefined {
  const lower = text.charAt(0).toLowerCase() + text.slice(1)
  if (lie === 'number') return text.replace(/\b\d+\b/, (number) => String(Number(number) + 3))
  if (lie === 'name') return text.replace(/(?<=[a-z,] )\p{Lu}\p{Ll}{2,}/u, 'Zorbax')
  if (lie === 'negation') return text.replace(VERB, '$1 not')
  if (lie === 'reworded denial')
    return VERB.test(text)
      ? `In practice ${lower.replace(VERB, '$1 hardly ever').replace(/\bthe\b/g, 'such a')}`
      : undefined
  if (lie === 'opposite') {
    const [pattern, word] = OPPOSITES.find(([own]) => own.test(text)) ?? []
    return pattern && word && `As a rule ${lower.replace(pattern, word)}`
  }
  if (lie === 'attribution') return `According to Gartner, ${lower}`
  return lie === 'other page' || lie === 'no such quote' ? other?.text : undefined
}
