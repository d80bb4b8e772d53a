/*
 * The type of answer that a question asks for (a date, a number, a reason), and whether a text contains such an answer.
 *
 * The type is found by patterns of question words, which are imprecise. For most types, a sentence with an answer of the type is therefore
 * preferred, but not required. Only dates, numbers and persons are required, because a text without a number cannot answer "how many".
 */

export type AnswerType =
  | 'date'
  | 'number'
  | 'person'
  | 'place'
  | 'name'
  | 'yes_no'
  | 'why'
  | 'how'
  | 'compare'
  | 'list'
  | 'definition'
  | 'default'
/** Types of answers that a text must contain if the question asks for them. */
export type RequiredType = 'date' | 'number' | 'person'

const REQUIRED: readonly RequiredType[] = ['date', 'number', 'person']

/** Matches phrases for a value that the user did not set: `if I give no value`, `I never changed anything`. */
const UNSET =
  /\b(?:out of the box|freshly installed|unless (?:I|you|one|we|it is|otherwise|configured|set|changed)|not (?:set|given|specified|configured|changed)|(?:give|set|specify|pass|choose|configure|change)s?\b.{0,20} (?:no|none|nothing)\b|(?:never|(?:do|did|have)(?: not|n't)) (?:set|give|given|specify|specified|pass|customi[sz]ed?|configured?|changed?|touched?)|without (?:setting|giving|specifying|passing|configuring|changing))/i

const ASKED: Readonly<Record<AnswerType, RegExp>> = {
  date: /\b(?:when (?:was|were|did|has|had)|(?:since|until) when|(?:which|what) (?:(?:\p{L}+ )?(?:version|release)|days?|dates?|months?|years?)\b)/iu,
  number:
    /\bhow (?:many|much|long|often|old|large|big|far|fast|high)\b|\b(?:largest|smallest|maximum|minimum|percentage|fee|price|salary)\b|\b(?:which|what) (?:(?:exit|return) (?:codes?|status)|(?:\p{L}+ )?port(?: number)?)\b/iu,
  // A question such as "who can ..." or "who is ..." may ask for a role instead of a name, so these forms are excluded.
  person: /\bwho(?:se)?\b(?! (?:is|are|can|may|should|must|has|have|does|do)\b)|\bsurname\b/i,
  place: /\bwhere\b|\b(?:which|what) (?:\p{L}+ )?(?:city|town|country|place|directory|folder|path|file|location)\b/iu,
  name: /\b(?:which|what (?:is|was|are|were) (?:the |its |their )?(?:\p{L}+ )?(?:name|called|default)|what \p{L}+ (?:is|was|does|did|are|were|do|can|must|should|lets?))\b/iu,
  yes_no:
    /^(?:is|are|was|were|does|do|did|can|could|will|would|should|must|may|might|has|have|had|am) |,\s*(?:is|are|does|do|can|will|should|must|may|has|have) /i,
  why: /\bwhy\b|\b(?:what|which) (?:is|was|are|were) (?:the|a|their|its) (?:reasons?|causes?|purposes?)\b|\bwhat (?:causes|caused|makes|made)\b|\bwhat for\b/i,
  how: /\bhow (?:do|does|did|can|could|should|to|is|are|would|might|must|may)\b|\b(?:which|what) (?:commands?|options?|flags?|switch(?:es)?|steps|settings?|directives?|parameters?)\b/i,
  compare:
    /\b(?:differences?|differ|compared?|versus|vs|distinguish(?:es|ed)?|in contrast|instead of|rather than|better|faster|advantages?)\b/i,
  list: /\b(?:which (?:\p{L}+ )?\p{L}+s (?:are|were|do|does|can|did|have|must|exist)|what are|what (?:\p{L}+ )?(?:kinds|types|sorts)|list|name (?:the|all|two|three|four|five))\b/iu,
  default: new RegExp(String.raw`\bdefaults?\b|${UNSET.source}`, 'i'),
  definition:
    /\bwhat(?: exactly)? (?:is|are|was|were) (?:an? |the )?[\p{L}\p{N}_.+-]+(?: [\p{L}\p{N}_.+-]+)?(?: (?:in|of|for|on) (?:an? |the )?[\p{L}\p{N}_.+-]+)?\s*\??$|\bmeant by\b|\bwhat (?:does|do|did) .{1,80}\b(?:mean|stand for|refer to)\b|\bmeaning of\b|\bdefin(?:e|ed|ition)\b/iu,
}
/** Question words of other languages than English. The words for numbers include words of measures, such as "height". */
const ASKED_ABROAD: Readonly<Record<'date' | 'number', string>> = {
  date: `wann|welche[mr] (?:jahr|tag|datum)|quand|quelle (?:année|date)|cuándo|qué año|quando|que ano|che anno|wanneer|welk jaar|när|vilket år|hvornår|når|milloin|
    kiedy|którym roku|kdy|mikor|când|ne zaman|hangi yıl|kapan|tahun berapa|khi nào|năm nào|когда|каком году|коли|якому році|кога|πότε|ποιο έτος|
    متى|أي عام|چه سالی|کی |کب|कब|किस वर्ष|何时|何時|哪一年|什么时候|什麼時候|いつ|何年|언제|몇 년|เมื่อไร|เมื่อไหร่|เมื่อใด|ปีใด|ปีไหน|מתי`,
  number: `wie (?:lang|hoch|tief|viele?|groß|schwer|weit|alt|breit|schnell)|combien|quelle est la (?:hauteur|longueur|population|superficie)|
    cuánt[oa]s?|quant[oaie]s?|hoeveel|hoe (?:lang|hoog|diep|groot|oud)|hur (?:lång|hög|många|mycket|stor|djup)|hvor (?:lang|høj|høy|mange|stor|dyb)|kuinka|
    montako|paljonko|ile|jak (?:wysok|dług|głębok|duż)|kolik|hány|mennyi|milyen (?:magas|hosszú)|cât|câți|câte|kaç|berapa|bao nhiêu|bao lâu|сколько|
    скільки|колко|как(?:ова|ая) (?:высота|длина|глубина|площадь)|πόσ(?:ο|η|οι|ες|α)|ποιο είναι το ύψος|كم|چند|چقدر|کتن|कितन|多少|多长|多長|多高|多大|
    多深|多重|几|幾|いくつ|いくら|何(?:メートル|キロ|人|歳|本|個|階)|どのくらい|どれくらい|얼마|몇|เท่าไร|เท่าไหร่|เท่าใด|กี่|כמה`,
}
const MONTH = 'january|february|march|april|may|june|july|august|september|october|november|december'
const YEAR = /\b(?:1[5-9]|20)\d\d\b/
const DATED = new RegExp(String.raw`\b(?:${MONTH}) \d{1,2}, \d{4}\b|\b(?:in|since|of|©|\(c\)) ${YEAR.source}`, 'gi')
/** A version number counts as a date, because manuals date a change by its version ("since 9.6"). */
const DATE = new RegExp(String.raw`${YEAR.source}|['’]\d\d\b|\b\d+\.\d|\b(?:${MONTH})\b`, 'i')
/** Numbers from two to ten in other languages. Words that English has too, such as "due", are omitted. */
const NUMBER_ABROAD =
  'zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|deux|trois|quatre|cinq|sept|huit|neuf|dix|tre|quattro|cinque|sette|otto|nove|dieci|dos|tres|cuatro|cinco|siete|ocho|nueve|diez|dois|duas|três|quatro|sete|oito|dez|twee|drie|vijf|zes|zeven|negen|tien|dwa|trzy|cztery|два|две|три|четыре|пять|шесть|семь|восемь|девять|десять'
const NUMBER_WORD_ABROAD = new RegExp(`(?<!\\p{L})(?:${NUMBER_ABROAD})(?!\\p{L})`, 'iu')
const NUMBER =
  /\p{N}|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred|thousand|million|billion|half|quarter|third|once|twice|every|each|daily|weekly|monthly|yearly|annual(?:ly)?|unlimited|hours?|days?|weeks?|months?|years?)\b|[一二三四五六七八九十百千万萬億亿两兩]/iu
/** Matches two capitalized words in a row. The first word must not be an article, pronoun or preposition. */
const PERSON =
  /\b(?!(?:The|An?|This|That|These|Those|It|All|Each|No|In|On|At|By|For|From|If|When|See|Note)\b)\p{Lu}\p{Ll}+(?:\s+(?:\p{Lu}\.|van|de|von)){0,2}\s+\p{Lu}\p{L}+/u
const FOUND: Readonly<Record<AnswerType, RegExp>> = {
  date: DATE,
  number: new RegExp(`${NUMBER.source}|${NUMBER_WORD_ABROAD.source}`, 'iu'),
  person: PERSON,
  place:
    /(?:^|[\s(“"'])(?:~|\.{0,2}\/)[\w./-]+|\b(?:in|at|near|under|from|to)\s+(?:the\s+)?\p{Lu}\p{L}+|\b(?:directory|folder|path|located|stored|placed)\b/u,
  name: /(?<!^)(?<![.!?:]\s)\b\p{Lu}[\p{L}\p{N}-]+|\b\w+_\w+|(?<=\s)--?[a-z][\w-]*|[“"‘'][^”"’']{2,40}[”"’']|\b\w+\(\)/u,
  yes_no:
    /\b(?:not|no|never|cannot|can|may|must|only|always|yes|unless|without|does|do|is|are|will|supports?|supported|allows?|allowed|requires?|required|possible|impossible|enabled|disabled)\b|n['’]t\b/i,
  why: /\b(?:because|since|so that|due to|reasons?|in order to|as a result|therefore|thus|hence|otherwise|to avoid|to prevent|to allow|to make|caused?|leads? to|means that|for this|that is why)\b/i,
  how: /(?<=\s)--?[a-z][\w-]*|\b(?:by \p{L}+ing|use|run|set|add|edit|type|enter|invoke|configure|install|execute|specify|create|call|pass|change|enable|disable|select|choose|with the)\b|[$#] \w/iu,
  compare:
    /\b(?:whereas|while|unlike|than|but|however|instead|both|in contrast|on the other hand|compared|differs?|difference|other)\b/i,
  list: /(?:[^,;]{2,60}[,;] ){2,}|\b(?:are|include|includes|following|both|first|second)\b|\t.*\t/,
  default:
    /\bdefaults?\b.*(?:\p{N}|\b(?:true|false|yes|no|none|null|on|off|enabled|disabled|unlimited|empty|not)\b|[“"‘'`][^”"’'`]{1,40}[”"’'`]|\w_\w|\bis\b|\bto\b|:\s*\S)|(?:\p{N}|\b(?:enabled|disabled|true|false|on|off|is|are|used)\b)[^.]{0,40}\bby default\b/iu,
  definition:
    /\b(?:is|are|was) (?:an?|the|one)\b|\b(?:means?|stands? for|refers? to|denotes?|called|known as|defined|short for|abbreviation|acronym)\b/i,
}
const ABROAD = {
  date: wordsPattern(ASKED_ABROAD.date),
  number: wordsPattern(ASKED_ABROAD.number),
} as const
const TYPES = Object.keys(ASKED) as AnswerType[]

const PRICE =
  /\b(?:price|fee|cost|salary|preis|kostet|kosten|prix|coûte|precio|cuesta|prezzo|costa|preço|custa)\b|цена|стоит|价格|售价|多少(?:元|钱|錢)|価格|何円|가격/iu
/** Pairs of patterns. The first matches question words of a measure, and the second a value in a unit of that measure. */
const MEASURES: readonly (readonly [RegExp, RegExp])[] = [
  [
    /\bhow (?:long|often|old|soon|fast|quickly)\b|\b(?:timeout|duration|interval|delay|period)\b/i,
    /\b(?:\p{N}[\p{N}.,]*|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|few|several|every|each)[ -]?(?:ms|s|min|h|d|milliseconds?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|times?|decades?)\b|\b(?:hourly|daily|weekly|monthly|yearly|annually|once|twice)\b/iu,
  ],
  [
    /\bhow (?:large|big|much)\b|\b(?:size|memory|space)\b/i,
    /\p{N}[\p{N}.,]*\s?(?:[kKMGTP]i?B?|bytes?|bits?|kilobytes?|megabytes?|gigabytes?|terabytes?|blocks?|pages?|%|percent|characters?|lines?)\b/u,
  ],
  [
    new RegExp(String.raw`\bhow much\b|${PRICE.source}`, 'iu'),
    /[$€£¥￥₽]\s?\p{N}|\p{N}\s?(?:[€元円원]|dollars?|euros?|USD|EUR|billion|million|percent|%)/iu,
  ],
  [/\b(?:percentage|share|proportion|majority)\b/i, /\p{N}\s?%|\bpercent\b|\b(?:half|quarters?|thirds?)\b/iu],
]

export function answerTypesOf(question: string, isEnglish = true): AnswerType[] {
  if (isEnglish) return TYPES.filter((type) => ASKED[type].test(question))
  const found = (['date', 'number'] as const).filter((type) => ABROAD[type].test(question))
  // The date patterns contain only English names of months. In other languages, any number is therefore accepted as an answer to "when".
  return found.includes('date') ? ['date', 'number'] : found
}

export function requiredOf(types: readonly AnswerType[]): RequiredType[] {
  return REQUIRED.filter((type) => types.includes(type))
}

export function holdsType(text: string, type: AnswerType): boolean {
  return FOUND[type].test(text)
}

/**
 * Rates how well a text fits the types of a question, 0 to 1. A number rates 1 if it has a unit of the requested measure or stands next
 * to the counted noun. Years and names that the question itself contains do not count as an answer.
 */
export function fitOf(text: string, question: string, types: readonly AnswerType[]): number {
  const required = requiredOf(types)
  let best = 0
  const preferred = types.includes('default') ? (['default'] as const) : types
  for (const type of required.length > 0 ? required : preferred) best = Math.max(best, fitOfType(text, question, type))
  return best
}

/** Form of an answer: the path of a file or directory, or an identifier such as an option. */
export type AnswerForm = 'path' | 'identifier'

const ASKED_FORMS: readonly (readonly [AnswerForm, word: RegExp, noun: RegExp])[] = [
  [
    'path',
    /\bwhere\b/i,
    /\b(?:disk|files?|director(?:y|ies)|folders?|stores?|stored|saved?|installed|configur\w+|logs?|database|cache)\b/i,
  ],
  ['path', /\b(?:which|what) (?:\w+ )?(?:directory|folder|path|file|location)\b/i, /(?:)/],
  [
    'identifier',
    /\b(?:which|what)\b/i,
    /\b(?:command|option|flag|switch|setting|directive|parameter|variable|function|method|header|key|keyword|argument|macro|module|class|field|attribute|property|signal|event|utility|program|tool)\b/i,
  ],
  ['identifier', /\bhow (?:do|can|to|should|would|could)\b/i, /(?:)/],
]
const FORMS: Readonly<Record<AnswerForm, { readonly pattern: RegExp; readonly otherwise: number }>> = {
  path: { pattern: /(?:^|[\s(“"'‘`])(?:~|\.{0,2}\/)[\w.$-]+/, otherwise: 0.3 },
  identifier: {
    pattern: /(?:^|[\s(“"'‘`])--?[a-zA-Z][\w-]*|\b\w+_\w+\b|\b\w+\(\)|\b[a-z]+[A-Z]\w+|[“"‘'`][^”"’'`\s]{2,40}[”"’'`]/,
    otherwise: 0.5,
  },
}

/**
 * Returns the form of answer that a question asks for. The pattern of the noun is applied only to the text after the
 * first question word, so that the search takes linear time.
 */
export function answerFormOf(question: string): AnswerForm | undefined {
  return ASKED_FORMS.find(([, word, noun]) => {
    const at = question.search(word)
    return at >= 0 && noun.test(question.slice(at))
  })?.[0]
}

/**
 * Adjusts the fit of a text (see `fitOf`) if the question asks for a path or an identifier. The fit is 1 if the text contains one, and is
 * reduced if not.
 */
export function formFitOf(text: string, form: AnswerForm | undefined, fit: number): number {
  if (form === undefined) return fit
  const { pattern, otherwise } = FORMS[form]
  return pattern.test(text) ? 1 : otherwise * fit
}

const RELEASE_ASKED = /\b(?:which|what) (?:\p{L}+ )?(?:version|release)\b/iu
const RELEASE = /\bv?\d+\.\d|\b(?:version|release|v) ?\d|\b\p{Lu}\p{L}+ \d/u

function fitOfType(text: string, question: string, type: AnswerType): number {
  if (type === 'number') return numberFit(text, question)
  if (type === 'date' && RELEASE_ASKED.test(question)) return RELEASE.test(text) ? 1 : holdsType(text, type) ? 0.5 : 0
  if (type === 'date') return YEAR.test(text.replace(yearsOf(question), '')) ? 1 : holdsType(text, type) ? 0.5 : 0
  if (type === 'definition') return definitionFit(text, question)
  return holdsType(text, type) ? 1 : 0
}

const DEFINES =
  /^[^.]{0,60}?\b(?:is|are|was|means?|stands? for|refers? to|denotes?|describes?|indicates?)\b|^[^\t|]{1,60}(?:\t| \| )/i
const WORD = /[\p{L}\p{N}_]{4,}/gu

/** Returns 1 if the text defines a term of the question. Examples are a sentence such as "X is ...", and a table row whose first cell is the term. */
function definitionFit(text: string, question: string): number {
  const [opening] = DEFINES.exec(text) ?? []
  const asked = (question.toLowerCase().match(WORD) ?? []).map((word) => word.replace(/(?:ies|es|s)$/, ''))
  const words = opening?.toLowerCase() ?? ''
  if (asked.some((word) => words.includes(word) && !/^(?:what|mean|does|meant)/.test(word))) return 1
  return holdsType(text, 'definition') ? 0.4 : 0
}

const COUNTED = /\bhow many ((?:\p{L}+ ){0,2}?\p{L}{3,})/iu

/** Matches nouns of a question whose answer needs a unit. A number without a unit of the measure rates only 0.4. */
const UNIT_REQUIRED = new RegExp(
  String.raw`\b(?:timeout|duration|interval|delay|period|percentage)\b|${PRICE.source}`,
  'iu',
)
/** Matches words that mark a default value. If a question asks for a default, then a number without such a word rates at most 0.5. */
const DEFAULT = /\b(?:defaults?|initial(?:ly)?|preset|standard)\b/i

/** Matches dates, times and versions. Their numbers do not answer the question "how many". */
const NOT_COUNT =
  /\b\d{4}-\d\d-\d\d\b|\b\d\d?:\d\d(?::\d\d)?\b|\b\d+\.\d+\.\d[\d.]*|\b(?:version|release) v?\d[\d.]*|\bone of\b/gi
const COUNT_ASKED = /\bhow many\b/i

function numberFit(whole: string, question: string): number {
  const text = COUNT_ASKED.test(question) ? whole.replace(NOT_COUNT, ' ').replace(DATED, ' ') : whole
  if (!holdsType(text, 'number')) return 0
  if (ASKED.default.test(question) && !DEFAULT.test(text)) return Math.min(0.5, measureFit(text, question))
  return measureFit(text, question)
}

function measureFit(text: string, question: string): number {
  const measure = MEASURES.filter(([asked]) => asked.test(question))
  if (measure.some(([, unit]) => unit.test(text))) return 1
  const counted = COUNTED.exec(question)?.[1]
    ?.split(' ')
    .at(-1)
    ?.toLowerCase()
    .replace(/(?:ies|es|s)$/, '')
  if (counted && counted.length > 2) {
    const near = new RegExp(
      String.raw`(?:\p{N}|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|no)\b)[^.;]{0,24}\b${counted}|\b${counted}[^.;]{0,24}(?:\p{N}|\bunlimited)`,
      'iu',
    )
    if (near.test(text)) return 1
  }
  if (UNIT_REQUIRED.test(question) && measure.length > 0) return 0.4
  return measure.length > 0 || counted ? 0.5 : 0.7
}

/** Matches a question for an amount, such as a size, a duration, a limit or a count. */
const AMOUNT_ASKED =
  /\bhow (?:many|much|long|often|old|large|big|far|fast|high|deep|wide|tall|heavy|soon|late)\b|\b(?:largest|smallest|maximum|minimum|highest|lowest|percentage|fee|price|salary|upper bound)\b|\b(?:which|what) (?:exit|return) (?:codes?|status)|\b(?:default|what|which)(?: \w+){0,3} (?:interval|timeout|size|limit|time|delay|period|duration|length|port)\b|\bin (?:seconds|minutes|bytes|days|hours)\b/i
/** Pattern for questions that ask for the name of an option or program. The answer is that name, even if the question also mentions an amount. */
const IDENTIFIER_ASKED =
  /\b(?:which|what) (?:\w+ ){0,3}(?:option|setting|directive|parameter|command|placeholder|variable|field|flag|method|function|keyword|attribute|header|module|class|property|signal|event|tool)\b/i
/** Digits that are no amount: names such as `pm2`, footnotes, issue numbers, versions with three parts, and years. */
const NO_AMOUNT = /\b[A-Za-z]+\d\w*|\[\d+\]|#\d+|\bv?\d+\.\d+\.\d[\d.]*|\b(?:19|20)\d\d\b/g
const AMOUNT_WORD =
  /\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred|thousand|million|once|twice|unlimited|half|quarter|third|daily|weekly|monthly|every|each|hour|day|week|month|year)s?\b/i

/** Whether an English question can be answered only by a text with an amount. */
export function asksAmount(question: string): boolean {
  return AMOUNT_ASKED.test(question) && !IDENTIFIER_ASKED.test(question)
}

/** Whether a text contains an amount. Numbers that the question itself contains do not count. */
export function holdsAmount(text: string, question: string): boolean {
  const asked = new Set(question.match(DIGITS))
  const own = text.replace(NO_AMOUNT, ' ')
  return AMOUNT_WORD.test(own) || (own.match(DIGITS) ?? []).some((number) => !asked.has(number))
}

const DIGITS = /\d+(?:[.,]\d+)*/g

function yearsOf(question: string): RegExp {
  const years = question.match(/\b(?:1[5-9]|20)\d\d\b/g)
  return years ? new RegExp(`\\b(?:${years.join('|')})\\b`, 'g') : /(?!)/
}

/** Builds a pattern that matches any word of a `|`-separated list. In alphabetic scripts, a match must start at the beginning of a word. */
function wordsPattern(list: string): RegExp {
  const words = list.replace(/\|\s+/g, '|')
  return new RegExp(`(?<![\\p{Script=Latin}\\p{Script=Cyrillic}\\p{Script=Greek}\\p{Script=Arabic}])(?:${words})`, 'iu')
}
