import { STATED_VALUE } from './contexts.ts'
import { QUOTE_CHARS_MAX, type Sentence } from './sentences.ts'

/** Minimum UTF-16 units of a quoted sentence, and of a quoted line of code. */
const QUOTE_CHARS_MIN = 24
const CODE_CHARS_MIN = 4
/**
 * Minimum UTF-16 units of a row, item or definition. This minimum is lower, because such a quote is shown with its table header, introduction or
 * term.
 */
const VALUE_CHARS_MIN = 8
const SYLLABLES = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/gu
const OTHER_LETTERS = /(?!\p{Script=Latin})\p{L}/gu
/** Matches a URL, a host that starts with `www.`, or a mail address. */
const ADDRESS = /:\/\/|\bwww\.|\b[\w.-]{1,64}@[\w-]{1,63}\.[a-z]/i

const OPENING = String.raw`^\W*(?:(?:please|now|also|important|attention|warning|note|system|hey)\b\W*)*`
const FOR_MODELS = [
  // Matches, for example, "Ignore all previous instructions and …".
  String.raw`(?:ignore|disregard|forget|override)\b(?:\W+\w+){0,3}?\W+(?:previous|prior|above|earlier|preceding|your|other)\b(?:\W+\w+){0,2}?\W+(?:instructions?|prompts?|directives?|guidelines)\b`,
  // Matches, for example, "Dear AI assistant, …", "Note to language models: …", "AI agents reading this page must …".
  String.raw`(?:dear|to (?:all|any)|instructions? (?:to|for)|if you are|you are(?: now)?)\W+(?:an?\W+)?(?:\w+\W+)?(?:AI|LLMs?|(?:large )?language models?|chatbots?|AI (?:assistants?|agents?|models?))\b`,
  String.raw`(?:any |all )?(?:AI|LLMs?|language models?|AI (?:assistants?|agents?|models?)|chatbots?|assistants?)\W+(?:that (?:are |is )?)?(?:reading|summari[sz]ing|processing) this\b`,
].map((pattern) => new RegExp(`${OPENING}${pattern}`, 'i'))

/**
 * Whether a report may quote a sentence. A sentence with an address is rejected, because it could lead the reader to a hostile site. A sentence that
 * begins with an instruction for a model is rejected as prompt injection. A sentence that only describes such instructions may be quoted.
 */
export function isQuotable(sentence: Pick<Sentence, 'text' | 'isCode' | 'isLabel' | 'isRow' | 'contexts'>): boolean {
  const { text, isCode, isLabel } = sentence
  if (isLabel || text.length > QUOTE_CHARS_MAX || !isForReaders(text)) return false
  if (isValue(sentence)) return true
  return isCode ? text.length >= CODE_CHARS_MIN : weightedLengthOf(text) >= QUOTE_CHARS_MIN && !/[:?：？؟]$/.test(text)
}

/** Whether a row or line states a value, such as `Default: 1048576`. Such a line may be quoted although it is short. */
function isValue({ text, isRow, contexts }: Pick<Sentence, 'text' | 'isRow' | 'contexts'>): boolean {
  if (!/[\p{L}\p{N}]$|[.)\]%”"']$/u.test(text)) return false
  return STATED_VALUE.test(text) || ((isRow || contexts !== undefined) && text.length >= VALUE_CHARS_MIN)
}

/** Returns the length of a text in letters of English. One Chinese character counts as three letters, because it carries about as much meaning. */
function weightedLengthOf(text: string): number {
  const syllables = text.match(SYLLABLES)?.length ?? 0
  const letters = text.match(OTHER_LETTERS)?.length ?? 0
  return text.length + 2 * syllables + 0.5 * letters
}

export function isForReaders(text: string): boolean {
  const plain = text.replace(/\u200c|\u200d/g, '')
  return !hasAddress(plain) && !FOR_MODELS.some((pattern) => pattern.test(plain))
}

/** Whether a text contains an address. A report may contain addresses only in its list of sources. */
export function hasAddress(text: string): boolean {
  return ADDRESS.test(text)
}
