/*
 * Line breaking for subtitles. The text is split into tokens, each with a width and a score. The score rates a line break after the token, higher is
 * better. Widths are in columns: a Latin, Greek or Cyrillic letter takes one, a Chinese, Japanese or Korean character two.
 */

export const LINE_COLUMNS_MAX = 42
const LINES_MAX = 2

/**
 * The smallest unit that is never divided between two lines: a word with its punctuation. Scripts without spaces are divided into the words of a
 * dictionary.
 */
export interface Token {
  readonly text: string
  /** Whether a space precedes the token. If the token begins a line, then this space is omitted. */
  readonly isSpaced: boolean
  readonly columns: number
  readonly at: number
  readonly endScore: number
}

/**
 * Scores of a break after a token. Among the tokens that fit, a line or cue ends after the one with the highest score. `afterBound` applies to a word
 * that belongs to the next word, such as an article.
 */
const SCORES = { sentence: 100, clause: 60, beforeConjunction: 35, plain: 0, afterBound: -50, insideNumber: -300 }

/**
 * Words per language that decide where a line may end. A break before a word of `begins` is good, because the word begins a phrase. A break after a
 * word of `binds`, such as an article, is bad.
 */
const PHRASES: Readonly<Record<string, { readonly begins: ReadonlySet<string>; readonly binds: ReadonlySet<string> }>> =
  {
    english: phrases(
      'and or but nor so because although though while when where if unless until since that which who than',
      'a an the my your his her its our their this these those of to in on at for with from by as no very mr mrs ms dr st',
    ),
    german: phrases(
      'und oder aber denn sondern dass weil obwohl wenn als ob damit bevor nachdem während',
      'der die das den dem des ein eine einen einem einer eines kein keine mein meine in im am an auf zu zum zur von vom mit bei für herr frau dr',
    ),
    french: phrases(
      'et ou mais donc car que qui quand lorsque si parce comme où',
      'le la les un une des du de au aux ce cet cette ces mon ma mes son sa ses en à dans sur pour par avec m mme',
    ),
    spanish: phrases(
      'y e o u pero sino porque que quien cuando si aunque como donde',
      'el la los las un una unos unas del de al a en con por para su sus mi mis este esta sr sra',
    ),
    italian: phrases(
      'e ed o ma però perché che chi quando se come dove',
      'il lo la i gli le un uno una del della di al alla a in con per su da il questo questa sig',
    ),
  }

function phrases(begins: string, binds: string) {
  return { begins: new Set(begins.split(' ')), binds: new Set(binds.split(' ')) }
}

/** `WIDE` matches characters that are two columns wide. `UNSPACED` matches characters of scripts without spaces between words. */
const WIDE =
  /[\u1100-\u115F\u2E80-\u303E\u3041-\uA4CF\uAC00-\uD7A3\uF900-\uFAFF\uFE30-\uFE4F\uFF00-\uFF60\uFFE0-\uFFE6\u{1F300}-\u{1FAFF}\u{20000}-\u{3FFFD}]/u
const UNSPACED = /[\u0E00-\u0EFF\u1000-\u109F\u1780-\u17FF\u3041-\u30FF\u3400-\u4DBF\u4E00-\u9FFF\uF900-\uFAFF]/
const LETTER_LAST = /[\p{L}\p{M}]$/u
const NOT_ASCII = /[^\x20-\x7E]/
const words = new Intl.Segmenter(undefined, { granularity: 'word' })
const graphemes = new Intl.Segmenter(undefined, { granularity: 'grapheme' })

export function columnsOf(text: string): number {
  if (!NOT_ASCII.test(text)) return text.length
  let columns = 0
  for (const { segment } of graphemes.segment(text)) columns += WIDE.test(segment) ? 2 : 1
  return columns
}

export function tokensOf(text: string, language: string): Token[] {
  const { begins, binds } =
    PHRASES[languageName(language)] ?? (PHRASES.english as NonNullable<(typeof PHRASES)[string]>)
  const tokens = rawTokens(text)
  for (const [index, token] of tokens.entries()) {
    token.endScore = endScoreOf(token.text, tokens[index + 1]?.text, begins, binds)
  }
  return tokens
}

type Draft = { -readonly [Key in keyof Token]: Token[Key] }

function rawTokens(text: string): Draft[] {
  const tokens: Draft[] = []
  const isUnspaced = UNSPACED.test(text)
  for (const { 0: word, index } of text.matchAll(/\S+/g)) {
    let isSpaced = index > 0
    for (const { piece, at } of isUnspaced ? piecesOf(word) : [{ piece: word, at: 0 }]) {
      for (const part of cutWide(piece)) {
        const columns = columnsOf(part.piece)
        tokens.push({ text: part.piece, isSpaced, columns, at: index + at + part.at, endScore: 0 })
        isSpaced = false
      }
    }
  }
  return tokens
}

interface Piece {
  readonly piece: string
  readonly at: number
}

function piecesOf(word: string): Piece[] {
  const pieces: { piece: string; at: number }[] = []
  for (const { segment, index, isWordLike } of words.segment(word)) {
    const last = pieces.at(-1)
    if (last && (!isWordLike || /[([{「『（]$/.test(last.piece))) last.piece += segment
    else pieces.push({ piece: segment, at: index })
  }
  return pieces
}

function cutWide(piece: string): Piece[] {
  if (piece.length <= LINE_COLUMNS_MAX / 2 || columnsOf(piece) <= LINE_COLUMNS_MAX) return [{ piece, at: 0 }]
  const parts: Piece[] = []
  let part = ''
  let at = 0
  for (const { segment, index } of graphemes.segment(piece)) {
    if (columnsOf(part + segment) > LINE_COLUMNS_MAX && part !== '') {
      parts.push({ piece: part, at })
      part = ''
      at = index
    }
    part += segment
  }
  parts.push({ piece: part, at })
  return parts
}

function endScoreOf(
  text: string,
  next: string | undefined,
  begins: ReadonlySet<string>,
  binds: ReadonlySet<string>,
): number {
  if (next === undefined) return SCORES.sentence
  if (!LETTER_LAST.test(text)) {
    const score = markScoreOf(text, next, binds)
    if (score !== undefined) return score
  }
  if (binds.has(text.toLowerCase())) return SCORES.afterBound
  return begins.has(next.toLowerCase()) ? SCORES.beforeConjunction : SCORES.plain
}

function markScoreOf(text: string, next: string, binds: ReadonlySet<string>): number | undefined {
  if (isInsideNumber(text, next)) return SCORES.insideNumber
  // A period after a title or after an initial before a name does not end a sentence.
  if (text.endsWith('.') && (binds.has(text.slice(0, -1).toLowerCase()) || /^\p{Lu}\.$/u.test(text))) {
    return SCORES.afterBound
  }
  if (/[.!?…。！？][)"'”’»」』]*$/.test(text)) return SCORES.sentence
  return /[,;:，、；：—–][)"'”’»]*$/.test(text) ? SCORES.clause : undefined
}

/** Whether `text` and `next` belong to one number. Examples: "10 000", "5 %", "3 million", "No. 7", "7 p.m.", "$ 5". */
function isInsideNumber(text: string, next: string): boolean {
  if (/\d$/.test(text))
    return /^(\d|%|‰|°|€|\$|£|(thousand|million|billion|percent|a\.?m|p\.?m|Uhr|Millionen|millions?|mil)\b)/i.test(next)
  return /^(no|nr|p|vol|[$€£#§])\.?$/i.test(text) && /^\d/.test(next)
}

export function columnsBetween(tokens: readonly Token[], from: number, to: number): number {
  let columns = 0
  for (let at = from; at < to; at++) {
    const { columns: own, isSpaced } = tokens[at] as Token
    columns += own + (isSpaced && at > from ? 1 : 0)
  }
  return columns
}

export function canBreak(tokens: readonly Token[], from: number, to: number): boolean {
  return breakOf(tokens, from, to) !== undefined
}

export function linesOf(tokens: readonly Token[], from: number, to: number): string[] | undefined {
  if (columnsBetween(tokens, from, to) <= LINE_COLUMNS_MAX) return [textOf(tokens, from, to)]
  const at = breakOf(tokens, from, to)
  return at === undefined ? undefined : [textOf(tokens, from, at), textOf(tokens, at, to)]
}

function breakOf(tokens: readonly Token[], from: number, to: number): number | undefined {
  const all = columnsBetween(tokens, from, to)
  if (all > LINES_MAX * LINE_COLUMNS_MAX + 1) return undefined
  let best: number | undefined
  let bestScore = Number.NEGATIVE_INFINITY
  let first = 0
  for (let at = from; at < to - 1; at++) {
    const { columns, isSpaced, endScore } = tokens[at] as Token
    first += columns + (isSpaced && at > from ? 1 : 0)
    const second = all - first - (tokens[at + 1]?.isSpaced ? 1 : 0)
    if (first > LINE_COLUMNS_MAX) break
    const score = endScore - 2 * Math.abs(first - second)
    if (second > LINE_COLUMNS_MAX || score <= bestScore) continue
    best = at + 1
    bestScore = score
  }
  return best
}

function textOf(tokens: readonly Token[], from: number, to: number): string {
  let text = ''
  for (let at = from; at < to; at++) {
    const token = tokens[at] as Token
    text += at > from && token.isSpaced ? ` ${token.text}` : token.text
  }
  return text
}

/** Languages of the speech models: the code and the lower-case English name of each. */
const NAMES: ReadonlyMap<string, string> = new Map(
  `
    af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian,
    bg bulgarian, bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh, da danish,
    de german, el greek, en english, es spanish, et estonian, eu basque, fa persian, fi finnish, fo faroese,
    fr french, gl galician, gu gujarati, ha hausa, haw hawaiian, he hebrew, hi hindi, hr croatian,
    ht haitian creole, hu hungarian, hy armenian, id indonesian, is icelandic, it italian, ja japanese,
    jw javanese, ka georgian, kk kazakh, km khmer, kn kannada, ko korean, la latin, lb luxembourgish,
    ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy, mi maori, mk macedonian, ml malayalam,
    mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, ne nepali, nl dutch, nn nynorsk,
    no norwegian, oc occitan, pa punjabi, pl polish, ps pashto, pt portuguese, ro romanian, ru russian,
    sa sanskrit, sd sindhi, si sinhala, sk slovak, sl slovenian, sn shona, so somali, sq albanian,
    sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai, tk turkmen,
    tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese, yi yiddish, yo yoruba,
    yue cantonese, zh chinese
  `
    .split(',')
    .map((pair) => pair.trim())
    .map((pair) => [pair.slice(0, pair.indexOf(' ')), pair.slice(pair.indexOf(' ') + 1)] as const),
)

/** Codes of ISO 639-1 for languages that the speech models do not know. */
const OTHERS: ReadonlySet<string> = new Set(
  `
    aa ab ae ak an av ay bh bi bm ce ch co cr cu cv dv dz ee eo ff fj fy ga gd gn gv ho hz ia ie ig ii ik io
    iu kg ki kj kl kr ks ku kv kw ky lg li lu mh na nd ng nr nv ny oj om or os pi qu rm rn rw sc se sg sm ss
    st ti tn to ts tw ty ug ve vo wa wo xh za zu
  `
    .trim()
    .split(/\s+/),
)

/** Languages for which speech models use another code than ISO 639-1. The key is the ISO code, and the value is the code of the models. */
const SYNONYMS: ReadonlyMap<string, string> = new Map([
  ['jv', 'jw'],
  ['nb', 'no'],
])

/** Returns the code that speech models use for a language. Undefined if ISO 639-1 has no such language. */
export function findLanguage(code: string): string | undefined {
  const lower = code.toLowerCase()
  const usual = SYNONYMS.get(lower) ?? lower
  return NAMES.has(usual) || OTHERS.has(usual) ? usual : undefined
}

const englishNames = new Intl.DisplayNames(['en'], { type: 'language', fallback: 'none' })

/** Returns the lower-case English name of a language. A text that is not a code, such as a name from an engine, is returned in lower case. */
export function languageName(code: string): string {
  const usual = findLanguage(code)
  if (usual === undefined) return code.toLowerCase()
  return NAMES.get(usual) ?? englishNames.of(usual)?.toLowerCase() ?? usual
}
