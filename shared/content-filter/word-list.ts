import { englishDataset, englishRecommendedTransformers, RegExpMatcher } from 'obscenity'
import type { ModerationCategory, ModerationInput, ModerationResult } from '#schemas/kinds/moderations.ts'
import { eachCategory, type ModerationEngine } from '#shared/engines/engine.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { openProfanityFilter } from './profanity.ts'

/** Number of characters that are checked between two event-loop yields, which takes less than a millisecond. */
const WINDOW_MAX = 2_048
/**
 * Number of characters by which consecutive windows of a text overlap. A phrase at the border of two windows is therefore completely in one of them.
 */
const OVERLAP = 256

/** Slurs against groups of people. */
const HATE = new Set([
  ...['abo', 'abeed', 'africoon', 'arabush', 'boonga', 'chingchong', 'chink', 'dyke', 'fag', 'kike', 'negro', 'nigger'],
  ...['retard', 'spastic', 'tranny'],
])
/** Profanities and insults. Words of the list that are in neither set count as sexual. */
const HARASSMENT = new Set([
  ...['arse', 'ass', 'bastard', 'bitch', 'bollocks', 'cuck', 'cunt', 'dick', 'fuck', 'piss', 'prick', 'shit', 'slut'],
  ...['turd', 'twat', 'whore'],
])

/**
 * Opens a moderation engine that finds English words, also in common disguises, with the npm package `obscenity`. Each word belongs to one category,
 * and the meaning of the text is ignored. A score is 0 or 1. Categories without words in the list are always false. Images are not supported.
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
  /**
   * One generator classifies all inputs. With a generator per input, each input would begin a new time slice. Many small inputs would then never
   * yield to the event loop.
   */
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
    throw new ServiceError('unsupported_value', 'The word list does not support images.', { param: 'input' })
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

/** Splits a text into windows, at white space if possible. A split inside a word could create a word of the list, such as `ass` from `assess`. */
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

function cutBefore(text: string, at: number): number {
  for (let place = at; place > at - OVERLAP; place--) if (/\s/.test(text[place - 1] ?? '')) return place
  return at
}
