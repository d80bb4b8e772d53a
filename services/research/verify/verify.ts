/*
 * Checks a claim against its quotes, without a model. There are three verdicts.
 *
 * `supported`: a quote contains the claim verbatim, with the same conditions.
 *
 * `refused`: the claim contains a link, number, name, negation or antonym that its quotes lack, or shares too few terms with them. A judge
 * model cannot override a refusal.
 *
 * `undecided`: the claim is a paraphrase. A judge model decides (see `services/research/writer/judge.ts`).
 */
import { hasAddress } from '#shared/search/text/quotable.ts'
import { termSet, termsOf } from '#shared/search/text/terms.ts'
import { contradictionIn } from './contradiction.ts'

/** Result of a check. The reason is a sentence for the model that rewrites the claim. */
export type Verdict =
  | { readonly verdict: 'supported' }
  | { readonly verdict: 'refused' | 'undecided'; readonly reason: string }

const MARKUP = /\]\(|<\w[^>]{0,300}>/
const NUMBER = /(?<![\p{L}\p{N}_])(\d+(?:[.,:]\d+)*)\s?(%|[\p{L}µ]+)?/gu
/** Matches words that limit a statement. A claim that omits such a word of its quote states more than the quote. */
const QUALIFIER =
  /\b(?:if|unless|until|except|only|may|might|could|should|would|when|while|where|sometimes|often|usually|mostly|almost|about|up to|at least|at most|allegedly|claims?|claimed|reportedly|planned|proposed)\b/gi

/** Minimum share of the claim's terms that its quotes must contain. A claim with fewer shared terms is refused without a judge. */
const SHARED_MIN = 1 / 3

const NUMBER_WORDS: Readonly<Record<string, string>> = {
  two: '2',
  three: '3',
  four: '4',
  five: '5',
  six: '6',
  seven: '7',
  eight: '8',
  nine: '9',
  ten: '10',
  eleven: '11',
  twelve: '12',
  dozen: '12',
  twenty: '20',
  hundred: '100',
  thousand: '1000',
  million: '1000000',
  billion: '1000000000',
}
const UNITS: Readonly<Record<string, string>> = {
  ...same('ms', 'millisecond', 'milliseconds'),
  ...same('s', 'sec', 'second', 'seconds'),
  ...same('min', 'minute', 'minutes'),
  ...same('h', 'hour', 'hours'),
  ...same('d', 'day', 'days'),
  ...same('week', 'weeks'),
  ...same('month', 'months'),
  ...same('year', 'years'),
  ...same('%', 'percent'),
  ...same('kb', 'kilobytes'),
  ...same('kib'),
  ...same('mb', 'megabytes'),
  ...same('mib'),
  ...same('gb', 'gigabytes'),
  ...same('gib'),
  ...same('m', 'metres', 'meters'),
  ...same('km', 'kilometres', 'kilometers'),
  ...same('kg', 'kilograms'),
  ...same('g', 'grams'),
  ...same('usd', 'dollars'),
  ...same('eur', 'euros'),
  ...same('k', 'thousand'),
  ...same('million'),
  ...same('billion'),
}

export function verifyClaim(claim: string, quotes: readonly string[]): Verdict {
  if (quotes.some((quote) => plain(quote) === plain(claim))) return { verdict: 'supported' }
  if (hasLink(claim)) return refused('The claim has an address or markup that its quotes lack.')
  const number = numbersIn(claim).find((each) => !quotes.some((quote) => hasNumber(quote, each)))
  if (number) return refused(`No quote has the number ${number.value}${number.unit ? ` ${number.unit}` : ''}.`)
  const name = namesIn(claim).find((each) => !quotes.some((quote) => wordsIn(quote).has(each)))
  if (name) return refused(`No quote has the name ${name}.`)
  const near = quotes.find((quote) => standsIn(claim, quote)) ?? nearest(claim, quotes)
  if (sharedBy(claim, quotes) < SHARED_MIN) return refused('The claim has another subject than its quotes.')
  const turned = contradictionIn(claim, near) ?? reorderedIn(claim, near)
  if (turned !== undefined) return refused(turned)
  if (!standsIn(claim, near)) return undecided('The claim uses other words than its quotes.')
  if (countOf(QUALIFIER, claim) !== countOf(QUALIFIER, near)) return undecided('The claim omits or adds a condition.')
  return { verdict: 'supported' }
}

/** Whether a text contains an address or markup. Only the report's own code may add them, so texts of models and sources must not contain any. */
export function hasLink(text: string): boolean {
  return hasAddress(text) || MARKUP.test(text)
}

function sharedBy(claim: string, quotes: readonly string[]): number {
  const own = termSet(claim)
  return own.size === 0 ? 0 : own.intersection(termSet(quotes.join('\n'))).size / own.size
}

function nearest(claim: string, quotes: readonly string[]): string {
  const own = termSet(claim)
  const shared = quotes.map((quote) => own.intersection(termSet(quote)).size)
  return quotes[shared.indexOf(Math.max(...shared))] ?? ''
}

/** Returns a name or number whose order differs from that in the quote. Example: "A is 5 and B is 7" does not support "B is 5". */
function reorderedIn(claim: string, quote: string): string | undefined {
  const [own, other] = [[...wordsIn(claim)], [...wordsIn(quote)]]
  const names = new Set([...namesIn(claim), ...namesIn(quote)])
  const shared = own.filter((word) => (names.has(word) || /^\p{N}/u.test(word)) && other.includes(word))
  const places = shared.map((word) => other.indexOf(word))
  return places.every((place, at) => place > (places[at - 1] ?? -1))
    ? undefined
    : 'The claim exchanges names of its quotes.'
}

export function numbersIn(text: string): { value: string; unit: string | undefined }[] {
  const digits = [...text.matchAll(NUMBER)].map(([, value = '', after]) => ({
    value: value.replace(/,(?=\d{3}(?:\D|$))/g, ''),
    unit: after === undefined ? undefined : UNITS[after.toLowerCase()],
  }))
  const words = [...text.toLowerCase().matchAll(/\b[a-z]+\b/g)].flatMap(([word]) => {
    const value = NUMBER_WORDS[word]
    return value === undefined ? [] : [{ value, unit: undefined }]
  })
  return [...digits, ...words]
}

function hasNumber(quote: string, { value, unit }: { value: string; unit: string | undefined }): boolean {
  return numbersIn(quote).some((own) => {
    return own.value === value && (unit === undefined || own.unit === undefined || own.unit === unit)
  })
}

function namesIn(claim: string): string[] {
  const words = [...claim.matchAll(/[\p{L}\p{N}_]+(?:['’.-][\p{L}\p{N}_]+)*/gu)]
  return words.flatMap(([word], at) => {
    const isIdentifier = /_|\p{Ll}\p{Lu}|^\p{Lu}[\p{Lu}\p{N}]+$/u.test(word)
    const isFirst = at === 0 || /[.!?:]\s*$/.test(claim.slice(0, words[at]?.index))
    const isName = isIdentifier || (!isFirst && /^\p{Lu}/u.test(word) && word !== 'I')
    return isName ? [bare(word)] : []
  })
}

function wordsIn(text: string): Set<string> {
  return new Set([...text.matchAll(/[\p{L}\p{N}_]+(?:['’.-][\p{L}\p{N}_]+)*/gu)].map(([word]) => bare(word)))
}

function bare(word: string): string {
  return word.toLowerCase().replace(/['’]s$/, '')
}

/**
 * Whether the quote contains the terms of the claim next to each other and in the same order. Words between the terms could change the
 * meaning: "A is 5 and B is 7" does not support "A is 7".
 */
function standsIn(claim: string, quote: string): boolean {
  const own = [...termsOf(claim)].map(({ term }) => term)
  if (own.length < 2) return false
  return ` ${[...termsOf(quote)].map(({ term }) => term).join(' ')} `.includes(` ${own.join(' ')} `)
}

function countOf(pattern: RegExp, text: string): number {
  return text.match(pattern)?.length ?? 0
}

export function plain(text: string): string {
  return text
    .replace(/\s+/g, ' ')
    .trim()
    .replace(/[.;,]+$/, '')
}

function refused(reason: string): Verdict {
  return { verdict: 'refused', reason }
}

function undecided(reason: string): Verdict {
  return { verdict: 'undecided', reason }
}

function same(name: string, ...others: string[]): Record<string, string> {
  return Object.fromEntries([name, ...others].map((each) => [each, name]))
}
