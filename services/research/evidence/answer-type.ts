/** What kind of thing a question asks for, where words alone tell. */
export type AnswerType = 'date' | 'number' | 'person'

const ASKED: Readonly<Record<AnswerType, RegExp>> = {
  date: /\b(?:when (?:was|were|did|has|had)|(?:since|until) when|(?:which|what) (?:days?|dates?|months?|years?)\b)/i,
  number:
    /\bhow (?:many|much|long|often|old|large|big|far|fast|high)\b|\b(?:largest|smallest|maximum|minimum|percentage|fee|price|salary)\b/i,
  // What somebody is or may do is a role as often as a name.
  person: /\bwho(?:se)?\b(?! (?:is|are|can|may|should|must|has|have|does|do)\b)|\bsurname\b/i,
}
/** Question words of other languages. Words such as "height" ask for a number too. */
const ASKED_ABROAD: Readonly<Partial<Record<AnswerType, string>>> = {
  date: `wann|welchem jahr|quand|quelle année|cuándo|qué año|quando|que ano|che anno|wanneer|welk jaar|när|vilket år|hvornår|når|milloin|
    kiedy|którym roku|kdy|mikor|când|ne zaman|hangi yıl|kapan|tahun berapa|khi nào|năm nào|когда|каком году|коли|якому році|кога|πότε|ποιο έτος|
    متى|أي عام|چه سالی|کی |کب|कब|किस वर्ष|何时|何時|哪一年|什么时候|什麼時候|いつ|何年|언제|몇 년|เมื่อไร|เมื่อไหร่|เมื่อใด|ปีใด|ปีไหน|מתי`,
  number: `wie (?:lang|hoch|tief|viele?|groß|schwer|weit|alt|breit|schnell)|combien|quelle est la (?:hauteur|longueur|population|superficie)|
    cuánt[oa]s?|quant[oaie]s?|hoeveel|hoe (?:lang|hoog|diep|groot|oud)|hur (?:lång|hög|många|mycket|stor|djup)|hvor (?:lang|høj|høy|mange|stor|dyb)|kuinka|
    montako|paljonko|ile|jak (?:wysok|dług|głębok|duż)|kolik|hány|mennyi|milyen (?:magas|hosszú)|cât|câți|câte|kaç|berapa|bao nhiêu|bao lâu|сколько|
    скільки|колко|как(?:ова|ая) (?:высота|длина|глубина|площадь)|πόσ(?:ο|η|οι|ες|α)|ποιο είναι το ύψος|كم|چند|چقدر|کتن|कितन|多少|多长|多長|多高|多大|
    多深|多重|几|幾|いくつ|いくら|何(?:メートル|キロ|人|歳|本|個|階)|どのくらい|どれくらい|얼마|몇|เท่าไร|เท่าไหร่|เท่าใด|กี่|כמה`,
}
/** A version dates a change as well as a day does. */
const DATE =
  /\b(?:1[5-9]|20)\d\d\b|['’]\d\d\b|\b\d+\.\d|\b(?:january|february|march|april|may|june|july|august|september|october|november|december)\b/i
const NUMBER =
  /\p{N}|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred|thousand|million|billion|half|quarter|third|once|twice|every|each|daily|weekly|monthly|yearly|annual(?:ly)?|unlimited|hours?|days?|weeks?|months?|years?)\b|[一二三四五六七八九十百千万萬億亿两兩]/iu
/** Two names in a row; the first word of a sentence is written like one. */
const PERSON = /(?<![.!?:]\s)(?<!^)\b\p{Lu}\p{Ll}+(?:\s+(?:\p{Lu}\.|van|de|von)){0,2}\s+\p{Lu}\p{L}+/u
const ABROAD = Object.fromEntries(
  Object.entries(ASKED_ABROAD).map(([type, words]) => [type, wordsPattern(words ?? '')]),
) as Partial<Record<AnswerType, RegExp>>
const TYPES = Object.keys(ASKED) as AnswerType[]
const FOUND: Readonly<Record<AnswerType, RegExp>> = { date: DATE, number: NUMBER, person: PERSON }

/** The kinds of things that a question asks for; none where it asks why, how, or what something is. */
export function answerTypesOf(question: string, isEnglish = true): AnswerType[] {
  if (isEnglish) return TYPES.filter((type) => ASKED[type].test(question))
  const found = TYPES.filter((type) => ABROAD[type]?.test(question))
  // The names of months are known in English only, so that a date of another language is recognized by its digits.
  return found.includes('date') ? ['date', 'number'] : found
}

/** Whether a text holds something of that kind. */
export function holdsType(text: string, type: AnswerType): boolean {
  return FOUND[type].test(text)
}

/** Words of the list, each at the beginning of a word where its script has such. */
function wordsPattern(list: string): RegExp {
  const words = list.replace(/\|\s+/g, '|')
  return new RegExp(`(?<![\\p{Script=Latin}\\p{Script=Cyrillic}\\p{Script=Greek}\\p{Script=Arabic}])(?:${words})`, 'iu')
}
