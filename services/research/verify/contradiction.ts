/*
 * Detects statements that contradict or exaggerate their quote: negations, universal words ("all", "never") and antonyms. A statement
 * that differs from its quote in such words is refused. The judge model cannot override the refusal.
 */

const NEGATION =
  /\b(?:not|no|never|none|nobody|nothing|neither|nor|without|cannot|nowhere|hardly|rarely|seldom|fails? to|failed to|lacks?|instead of|rather than)\b|n['’]t\b/gi
/**
 * Matches words that make a statement universal. A claim may contain such a word only if its quote contains the word
 * too.
 */
const UNIVERSAL = /\b(?:all|every|everyone|everything|always|only|entirely|completely|must|guaranteed?|guarantees)\b/gi
const OPPOSITES: readonly (readonly [RegExp, RegExp])[] = [
  ['allow|permit', 'forb[ia]d|prohibit|prevent|den[iy]|refus|disallow'],
  ['enabl', 'disabl'],
  ['accept', 'refus|reject'],
  ['increas|grow|rais|rise', 'decreas|shrink|reduc|lower|drop|fall'],
  ['before\\b', 'after\\b'],
  ['more\\b', 'less\\b|fewer\\b'],
  ['most\\b', 'least\\b|few\\b'],
  ['first\\b', 'last\\b'],
  ['start|begin|began', 'stop|end|finish'],
  ['includ|contain', 'exclud|omit'],
  ['true\\b|right\\b|correct', 'false\\b|wrong\\b'],
  ['always\\b', 'sometimes\\b|occasionally\\b|often\\b'],
  ['requir|mandator|must\\b|need', 'optional|voluntar|need not\\b'],
  ['open', 'clos|shut'],
  ['add', 'remov|delet'],
  ['fast|quick', 'slow'],
  ['large|big|high|long', 'small|low\\b|short'],
  ['old|earl', 'new|late'],
  ['same\\b|equal', 'differen|unequal'],
  ['keep|kept|retain', 'discard|delet|lose|lost|drop'],
  ['succe', 'fail'],
  ['maxim|at most\\b', 'minim|at least\\b'],
  ['better\\b|best\\b', 'worse\\b|worst\\b'],
  ['public', 'private|secret'],
].map(([a, b]) => [new RegExp(`\\b(?:${a})`, 'gi'), new RegExp(`\\b(?:${b})`, 'gi')])
const PREFIX = /^(?:un|in|im|ir|il|dis|non|mis)-?(?=\p{Ll}{4})/u

export function contradictionIn(claim: string, quote: string): string | undefined {
  if (countOf(NEGATION, claim) !== countOf(NEGATION, quote))
    return 'The claim has more or fewer negations than its quote.'
  const more = [...claim.matchAll(UNIVERSAL)].find(([word]) => !hasWord(quote, word))
  if (more) return `The claim says “${more[0]}”, but its quote does not.`
  const turned = OPPOSITES.some(
    ([a, b]) => isAntonymSwapped(claim, quote, a, b) || isAntonymSwapped(claim, quote, b, a),
  )
  return turned || hasOtherPrefix(claim, quote) ? 'The claim has the opposite of a word in its quote.' : undefined
}

function isAntonymSwapped(claim: string, quote: string, own: RegExp, other: RegExp): boolean {
  return countOf(own, claim) > countOf(own, quote) && countOf(other, claim) < countOf(other, quote)
}

/** Whether one text contains a word and the other only its negated form, as in `safe` and `unsafe`. */
function hasOtherPrefix(claim: string, quote: string): boolean {
  const [own, other] = [wordsOf(claim), wordsOf(quote)]
  const isDenied = (some: ReadonlySet<string>, others: ReadonlySet<string>) =>
    [...some].some((word) => {
      const bare = word.replace(PREFIX, '')
      return bare !== word && !others.has(word) && others.has(bare) && !some.has(bare)
    })
  return isDenied(own, other) || isDenied(other, own)
}

function hasWord(text: string, word: string): boolean {
  return wordsOf(text).has(word.toLowerCase())
}

function wordsOf(text: string): Set<string> {
  return new Set(text.toLowerCase().match(/\p{L}+(?:-\p{L}+)*/gu))
}

function countOf(pattern: RegExp, text: string): number {
  return text.match(pattern)?.length ?? 0
}
