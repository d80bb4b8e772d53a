/*
 * Folds words for comparison: `İstanbul` and `istanbul`, `Straße` and `STRASSE`, `Όλυμπος` and `ΟΛΥΜΠΟΣ` become equal. Accents are removed
 * only in scripts in which people often omit them. In Hindi or Thai a mark is a vowel and is kept.
 */

const ACCENTED =
  /(?<=[\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{Script=Arabic}\p{Script=Hebrew}]\p{M}*)\p{M}/gu
/** Characters that change only the display of a word, and are removed: zero-width joiners, and the Arabic tatweel. */
const SPELLING = /\u200c|\u200d|\u0640/g
const LETTERS: Readonly<Record<string, string>> = {
  ß: 'ss',
  ς: 'σ',
  ı: 'i',
  ø: 'o',
  ł: 'l',
  đ: 'd',
  æ: 'ae',
  œ: 'oe',
  ی: 'ي',
  ى: 'ي',
  ک: 'ك',
  ة: 'ه',
}
const OTHER_LETTERS = new RegExp(`[${Object.keys(LETTERS).join('')}]`, 'g')

export function folded(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range is ASCII, which has no variants.
  if (/^[\x00-\x7f]*$/.test(text)) return text.toLowerCase()
  return text
    .normalize('NFKD')
    .toLowerCase()
    .replace(ACCENTED, '')
    .replace(SPELLING, '')
    .replace(OTHER_LETTERS, (letter) => LETTERS[letter] ?? letter)
    .normalize('NFC')
}
