import { englishDataset, englishRecommendedTransformers, RegExpMatcher } from 'obscenity'
import type { ContentFilter } from './content-filter.ts'
import { openScan } from './profanity-scan.ts'

/** Longest text looked at, in UTF-16 units: about 3 ms of CPU. */
const TEXT_MAX = 16 * 1024

/**
 * Finds English profanity by a word list that knows common disguises (obscenity). A heuristic: it knows no context, and
 * the other categories need a classifier or an upstream that has one.
 */
export function openProfanityFilter(): ContentFilter {
  let matcher: RegExpMatcher | undefined
  let mayMatch: ((text: string) => boolean) | undefined
  return {
    classify(text) {
      mayMatch ??= openScan(TEXT_MAX)
      if (!mayMatch(text.slice(0, TEXT_MAX))) return { detected: [] }
      matcher ??= new RegExpMatcher({ ...englishDataset.build(), ...englishRecommendedTransformers })
      return { detected: matcher.hasMatch(text.slice(0, TEXT_MAX)) ? ['profanity'] : [] }
    },
  }
}
