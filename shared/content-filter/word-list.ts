import { englishDataset, englishRecommendedTransformers, RegExpMatcher } from 'obscenity'
import type { ModerationCategory, ModerationInput, ModerationResult } from '#schemas/moderations.ts'
import { eachCategory, type ModerationEngine } from '#shared/engines/moderation.ts'
import { ServiceError } from '#shared/error.ts'
import { runYielding } from '#shared/yielding.ts'
import { openProfanityFilter } from './profanity.ts'

/** Characters looked at before other work may have its turn: under a millisecond. */
const WINDOW_MAX = 2_048
/** Characters that a window shares with the one before it, so that a word of several parts is whole in one of them. */
const OVERLAP = 256

/** Words for groups of people, by which they are despised. */
const HATE = new Set([
  ...['abo', 'abeed', 'africoon', 'arabush', 'boonga', 'chingchong', 'chink', 'dyke', 'fag', 'kike', 'negro', 'nigger'],
  ...['retard', 'spastic', 'tranny'],
])
/** Words that swear or insult. What the list has beside these and {@link HATE} is about sex. */
const HARASSMENT = new Set([
  ...['arse', 'ass', 'bastard', 'bitch', 'bollocks', 'cuck', 'cunt', 'dick', 'fuck', 'piss', 'prick', 'shit', 'slut'],
  ...['turd', 'twat', 'whore'],
])

/**
 * Opens the word list as a moderation engine: English words, whole or in common disguises (obscenity), each of which is of
 * one category. It knows no context and no degree, so a score is 0 or 1, and categories that words alone do not show
 * are always false. It reads no images.
 */
export function openWordList(): ModerationEngine {
  const filter = openProfanityFilter()
  let matcher: RegExpMatcher | undefined
  const judge = function* (text: string): Generator<undefined, ReadonlySet<ModerationCategory>> {
    const found = new Set<ModerationCategory>()
    for (const part of windowsOf(text)) {
      yield
      if (filter.classify(part).detected.length === 0) continue
      yield
      matcher ??= new RegExpMatcher({ ...englishDataset.build(), ...englishRecommendedTransformers })
      for (const match of matcher.getAllMatches(part)) {
        const { phraseMetadata } = englishDataset.getPayloadWithPhraseMetadata(match)
        found.add(categoryOf(phraseMetadata?.originalWord ?? ''))
      }
    }
    return found
  }
  /** One piece of work for all of them: each by itself would begin a turn of its own, and none of them end it. */
  const judgeAll = function* (inputs: readonly ModerationInput[]): Generator<undefined, ModerationResult[]> {
    const results: ModerationResult[] = []
    for (const input of inputs) {
      yield
      results.push(resultOf(yield* judge(textOf(input))))
    }
    return results
  }
  return {
    moderate: (inputs, { signal }) => runYielding(judgeAll(inputs), signal),
    close: async () => {},
  }
}

function textOf(input: ModerationInput): string {
  if (typeof input === 'string') return input
  const texts = input.map((part) => {
    if (part.type === 'text') return part.text
    throw new ServiceError('unsupported_value', 'The word list reads no images.', { param: 'input' })
  })
  return texts.join('\n')
}

function categoryOf(word: string): ModerationCategory {
  if (HATE.has(word)) return 'hate'
  return HARASSMENT.has(word) ? 'harassment' : 'sexual'
}

function resultOf(found: ReadonlySet<ModerationCategory>): ModerationResult {
  return {
    flagged: found.size > 0,
    categories: eachCategory((category) => found.has(category)),
    category_scores: eachCategory((category) => (found.has(category) ? 1 : 0)),
    category_applied_input_types: eachCategory(() => ['text' as const]),
  }
}

/** A text in pieces that begin and end between words where there are any: a piece of `classic` would be a word of the list. */
function* windowsOf(text: string): Generator<string> {
  let start = 0
  while (start < text.length) {
    const most = start + WINDOW_MAX
    const end = most >= text.length ? text.length : cutBefore(text, most)
    yield text.slice(start, end)
    if (end === text.length) return
    start = cutBefore(text, end - OVERLAP)
  }
}

/** The last place behind white space at most {@link OVERLAP} before `at`; `at` where there is none. */
function cutBefore(text: string, at: number): number {
  for (let place = at; place > at - OVERLAP; place--) if (/\s/.test(text[place - 1] ?? '')) return place
  return at
}
