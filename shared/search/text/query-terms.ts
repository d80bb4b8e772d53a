import { folded } from './fold.ts'
import { spansOf } from './scripts.ts'
import { synonymsOf } from './synonyms.ts'
import { type Term, termOf, termsOf, wordsOf } from './terms.ts'

/*
 * Words of a question that a matching source need not contain: question words, articles, pronouns, prepositions, and forms of "to be" and "to have".
 * The lists are short, because they are applied only to questions, which use few of these words.
 */

/**
 * Stop words of languages in Latin script, by which the language of a question is detected. The terms of the question omit these words. For English
 * questions, the longer list in `terms.ts` is used instead.
 */
const LATIN_STOP_WORDS: Readonly<Record<string, string>> = {
  en: `a an the is are was were be been what which who whom whose when where why how do does did can could will would should of in on at
    by to from for with and or not it its this that these those there has have had much many i you he she we they`,
  de: `wer wen wem wessen was wann wo wohin woher warum weshalb wieso wie welche welcher welches welchen welchem der die das den dem des
    ein eine einer eines einem einen ist sind war waren wird wurde wurden werden hat haben hatte kann können muss soll und oder aber nicht
    kein keine in im an am auf aus bei mit nach von vom zu zum zur für über unter um durch als auch es er sie wir ich man sich viel viele
    groß gibt misst mal`,
  fr: `qui que quoi quel quelle quels quelles quand où comment pourquoi combien est-ce est sont était étaient fut a ont avait le la les l un
    une des du de d au aux en dans sur sous par pour avec sans et ou mais ne pas ce cet cette ces il elle ils elles on se s son sa ses leur
    leurs qu y c n t mesure été être fait`,
  es: `qué quién quiénes cuál cuáles cuándo dónde adónde cómo cuánto cuánta cuántos cuántas por porque es son era eran fue fueron está están
    ser hay ha han tiene tienen el la los las un una unos unas lo de del al a en con sin para sobre y o pero no se su sus que mide pesa`,
  pt: `quem que qual quais quando onde como quanto quanta quantos quantas por porque é são era eram foi foram está estão ser há tem têm o a
    os as um uma uns umas de do da dos das em no na nos nas ao à com sem para sobre e ou mas não se seu sua seus suas mede fica`,
  it: `chi che cosa quale quali qual quando dove dov come perché quanto quanta quanti quante è sono era erano fu furono essere ha hanno
    il lo la i gli le l un uno una di del dello della dei degli delle d a al allo alla ai alle da dal dalla in nel nella nei con senza
    per su sul sulla e o ma non si suo sua misura trova`,
  nl: `wie wat welk welke wanneer waar waarom hoe hoeveel is zijn was waren wordt werd worden heeft hebben had kan het de een en of maar niet
    geen in op aan bij met van naar uit voor over door te dat die dit deze er zich`,
  sv: `vem vad vilken vilket vilka när var varför hur är var blev har hade kan den det en ett och eller men inte i på av för med till från om
    som de många mycket`,
  da: `hvem hvad hvilken hvilket hvilke hvornår hvor hvorfor hvordan er var blev har havde kan den det en et og eller men ikke i på af for
    med til fra om som de mange meget`,
  no: `hvem hva hvilken hvilket hvilke når hvor hvorfor hvordan er var ble har hadde kan den det en et ei og eller men ikke i på av for med
    til fra om som de mange mye`,
  fi: `kuka mikä mitä mitkä missä mistä mihin milloin miksi miten kuinka montako paljonko on ovat oli olivat ollut ja tai mutta ei se ne tämä
    joka jotka kuin`,
  pl: `kto co jaki jaka jakie jak kiedy gdzie skąd dokąd dlaczego czemu ile który która które jest są był była było były ma mają i lub ale
    nie w we na z ze do od po za dla o przez się to ten ta te`,
  cs: `kdo co jaký jaká jaké jak kdy kde odkud kam proč kolik který která které je jsou byl byla bylo byly má mají a nebo ale ne v ve na z ze
    do od po za pro o se to ten ta`,
  hu: `ki mi kik mik melyik milyen mikor hol honnan hová miért hogyan hány mennyi van vannak volt voltak a az egy és vagy de nem ez`,
  ro: `cine ce care când unde cum cât câtă câți câte este e sunt era erau fost are au un o ai al ale la în din de pe cu fără pentru și sau dar
    nu se`,
  tr: `kim kime ne neyi nedir hangi hangisi nerede nereye nereden neden niçin niye nasıl kaç kaçtır kadar mi mı mu mü ve veya ama ile için bir
    bu şu o da de var yok olan oldu olarak zaman dir dır`,
  vi: `ai gì nào đâu khi sao bao nhiêu mấy thế là có của và hoặc nhưng không ở trong trên với cho được bị các những một từ đến này đó`,
  id: `siapa apa apakah mana kapan dimana kenapa mengapa bagaimana berapa adalah ialah yang di ke dari pada dengan untuk dan atau tetapi
    tidak ini itu ada oleh`,
}

const SCRIPT_STOP_WORDS: Readonly<Record<string, string>> = {
  Cyrillic: `кто кого кому кем что чего чем какой какая какое какие каким какого какую какова каков каково каковы когда где куда откуда
    почему зачем как сколько который которая которое которые это эта этот эти есть был была было были является и или но не в во на с со к
    ко у о об от до по за из для под над при же ли бы он она оно они его её их то так хто що який яка яке які коли де куди звідки чому
    скільки є та або з із від кой коя кое кои какво кога къде защо колко е са`,
  Greek: `ποιος ποια ποιο ποιοι ποιες ποιον ποιου ποιας τι πότε πού που πώς πως γιατί πόσο πόση πόσος πόσοι πόσες πόσα είναι ήταν έχει έχουν
    είχε ο η το οι τα του της των τον την τους τις ένας μια μία ένα στο στη στην στον στα στις στους σε με για από ως και ή αλλά δεν να
    θα βρίσκεται`,
  Arabic: `من ما ماذا متى أين كيف كم لماذا أي أية هل هو هي هم كان كانت يكون في على إلى الى عن مع هذا هذه ذلك التي الذي و أو ثم لا لم يبلغ تبلغ
    كه چه چی چیست کیست کی کجا کجاست چرا چگونه چطور چند چقدر کدام است هست بود بودند شد در به از با برای را این آن و یا است؟ های می
    کیا کون کب کہاں کیوں کیسے کتنا کتنی کتنے کس ہے ہیں تھا تھی تھے کا کے کو میں سے پر نے اور`,
  Devanagari: `क्या कौन किस किसने किसे किसका किसकी कब कहाँ कहां क्यों कैसे कितना कितनी कितने कौनसा कौनसी है हैं था थी थे हो होता होती का के की को
    में से पर ने और या यह वह इस उस तक भी ही काय कोण केव्हा कुठे किती का आहे आहेत`,
  Bengali: 'কি কী কে কাকে কার কখন কোথায় কেন কীভাবে কত কতটা কোন কয়টি কয়টা হয় ছিল আছে এর ও এবং',
  Tamil: 'என்ன எது யார் எப்போது எங்கே எங்கு ஏன் எப்படி எவ்வளவு எத்தனை எந்த உள்ளது ஆகும் மற்றும்',
  Telugu: 'ఏమిటి ఏది ఎవరు ఎప్పుడు ఎక్కడ ఎందుకు ఎలా ఎంత ఎన్ని ఏ ఉంది మరియు',
  Sinhala: 'කුමක්ද මොකක්ද කවුද කවදාද කොහේද ඇයි කෙසේද කොපමණ කීයද යනු වේ සහ',
  Hebrew:
    'מי מה מתי איפה היכן לאן מאיפה מדוע למה איך כיצד כמה איזה איזו אילו הוא היא הם היה היתה הייתה של את על אל עם או לא זה זו יש',
  Armenian: 'ով ինչ երբ որտեղ ինչու ինչպես քանի որքան որ է են էր և կամ',
  Georgian: 'ვინ რა როდის სად რატომ როგორ რამდენი რომელი არის იყო და ან',
  East: `什么 什麼 甚么 谁 誰 哪 哪个 哪個 哪些 哪里 哪裡 哪儿 何时 何時 何地 为什么 為什麼 为何 怎么 怎麼 怎样 怎樣 如何 多少 多 几 幾 多久 吗 嗎 呢 吧 的 地 得 是 有 在
    了 和 与 與 或 及 被 把 从 從 到 对 對 于 於 由 也 都 就 这 這 那 个 個 年份 请 請 问 请问 何 どこ どれ どの どちら どう どうして なぜ いつ いくつ いくら どのくらい
    どれくらい どれぐらい くらい ぐらい です ますか ますか です でし ました ある あります ありますか いる います した する して れ られ から まで より という とは こと もの
    年 月 日`,
  Hangul: `무엇 무엇입니까 무엇인가요 뭐 뭐예요 누구 누가 누구입니까 누구인가요 언제 언제입니까 어디 어디입니까 어디에 어디서 어디인가요 왜 어떻게 어떤 어느 몇 얼마
    얼마나 얼마입니까 얼마인가요 얼마예요 있습니까 있나요 입니까 인가요 됩니까 되나요 했습니까 했나요 그리고 또는 및 이 그 저 수 것`,
  Thai: `ใคร อะไร ที่ไหน ไหน เมื่อไร เมื่อไหร่ เมื่อใด ทำไม อย่างไร ยังไง เท่าไร เท่าไหร่ เท่าใด กี่ ใด หรือ หรือไม่ ไหม คือ เป็น อยู่ มี ได้ ให้ ของ ใน ที่ บน จาก
    ถึง และ แต่ ไม่ นี้ นั้น ซึ่ง ถูก การ ความ ຫຍັງ ໃຜ ໃສ ເທົ່າໃດ`,
}

/*
 * Splits a question into search terms. Documents are split into terms without regard to their language. A question is split by the rules of its
 * language, because every needless word lowers the score of the best passage.
 *
 * 1. English: the terms of `terms.ts`.
 * 2. Other languages with spaces: the words without stop words, as prefixes. `Kilometern` becomes `kilome*`, which matches `Kilometer`. Prefixes have
 *    about the same quality as a stemmer for each language (McNamee and Mayfield 2004).
 * 3. Scripts without spaces: the words of `Intl.Segmenter` without stop words, divided into overlapping n-grams, and single Han characters. The
 *    question word `長度` then partly matches `全長` in a document.
 */

/** Suffix of a term that stands for all terms with this prefix. Terms of documents never contain this character. */
const PREFIX_MARK = '*'
/** Prefix lengths in UTF-16 units: PREFIX_SHORT for words of up to 5 units, PREFIX_MIDDLE for up to 8, PREFIX_LONG for longer words. */
const PREFIX_SHORT = 4
const PREFIX_MIDDLE = 5
const PREFIX_LONG = 6
const WORDS_MAX = 60
/** Maximum fraction of letters outside the Latin script in a question that is treated as English. */
const OTHER_SCRIPT_SHARE = 0.3

const KOREAN_ENDING =
  /(?<=[\p{Script=Hangul}]{2})(?:에서는|에서|으로|이란|에게|까지|부터|입니까|인가요|이다|의|은|는|이|가|을|를|에|로|와|과|도|만)$/u
const HAN = /^\p{Script=Han}$/u
const HIRAGANA_SHORT = /^\p{Script=Hiragana}{1,2}$/u

const latin = new Map(Object.entries(LATIN_STOP_WORDS).map(([language, words]) => [language, setOf(words)]))
const english = latin.get('en') ?? new Set()
const ofScripts = setOf(Object.values(SCRIPT_STOP_WORDS).join(' '))
const segmenter = new Intl.Segmenter('und', { granularity: 'word' })

export interface Language {
  readonly isEnglish: boolean
  readonly stopWords: ReadonlySet<string>
}

const ENGLISH: Language = { isEnglish: true, stopWords: english }

/** Detects the language of a question by its script and its stop words. Default: English. */
export function languageOf(question: string): Language {
  const letters = question.match(/\p{L}/gu) ?? []
  const other = letters.filter((letter) => !/\p{Script=Latin}/u.test(letter)).length
  if (other > OTHER_SCRIPT_SHARE * letters.length) return { isEnglish: false, stopWords: ofScripts }
  const words: string[] = []
  for (const { text } of wordsOf(question)) {
    words.push(...folded(text).split(/['’]/))
    if (words.length >= WORDS_MAX) break
  }
  const found = [...latin].map(([name, stops]) => ({
    name,
    stops,
    hits: words.filter((word) => stops.has(word)).length,
  }))
  const most = Math.max(...found.map(({ hits }) => hits))
  const best = found.filter(({ hits }) => hits === most)
  if (most > 0 && best.some(({ name }) => name === 'en')) return ENGLISH
  if (most === 0 && !/[^\p{ASCII}’‘“”–—…]/u.test(question)) return ENGLISH
  const stopWords = most === 0 ? [] : best.flatMap(({ stops }) => [...stops])
  return { isEnglish: false, stopWords: new Set(stopWords) }
}

/** Phrases of questions, each with the word that documents use instead, such as `maximum` for "at most". */
const PHRASES: readonly (readonly [RegExp, string])[] = [
  [/\b(?:at most|no more than|upper (?:bound|limit)|up to how)\b/i, 'maximum'],
  [/\b(?:at least|no less than|lower (?:bound|limit))\b/i, 'minimum'],
  [/\bhow (?:big|large)\b/i, 'size'],
  [/\b(?:come|came|comes) out\b/i, 'released'],
  [/\b(?:turn|turned|turning|switch|switched|switching) (?:it |me |them )?on\b/i, 'enable'],
  [/\b(?:turn|turned|turning|switch|switched|switching) (?:it |me |them )?off\b|\bget rid of\b/i, 'disable'],
  [/\bset(?:ting)? up\b/i, 'configure'],
  [/\bout of the box\b|\bfreshly installed\b|\bunless (?:I|you|one) changes? (?:it|that|this)\b/i, 'default'],
]

export function* queryTermsOf(text: string, language: Language): Generator<Term> {
  if (language.isEnglish) {
    let plain = text
    for (const [phrase, word] of PHRASES) plain = plain.replace(phrase, word)
    return yield* termsOf(plain)
  }
  for (const { text: word, spanLength } of wordsOf(text)) {
    if (spanLength > 0) yield* queryTermsOfRun(word, spanLength)
    else {
      const asked = queryTermsOfWord(word, language)
      if (asked !== undefined) yield { word, term: asked }
    }
  }
}

function* queryTermsOfRun(run: string, spanLength: number): Generator<Term> {
  for (const { segment } of segmenter.segment(run)) {
    const word = folded(segment).replace(KOREAN_ENDING, '')
    if (ofScripts.has(word) || ofScripts.has(folded(segment)) || HIRAGANA_SHORT.test(word)) continue
    for (const term of spansOf(word, spanLength)) yield { word: segment, term }
    if (word.length > 1) for (const character of word) if (HAN.test(character)) yield { word: segment, term: character }
  }
}

function queryTermsOfWord(word: string, { stopWords }: Language): string | undefined {
  const plain = folded(word)
  if (stopWords.has(plain) || stopWords.has(plain.replace(/^[^'’]*['’]/, ''))) return undefined
  const term = termOf(word)
  if (term === undefined || /\p{N}/u.test(term)) return term
  const isLatin = /^\p{Script=Latin}/u.test(term)
  if (term.length < PREFIX_SHORT) return isLatin || term.length < 3 ? term : term + PREFIX_MARK
  if (term.length > 8) return term.slice(0, PREFIX_LONG) + PREFIX_MARK
  if (term.length > 5) return term.slice(0, PREFIX_MIDDLE) + PREFIX_MARK
  // The final vowel of a short word is often an ending, so the prefix omits this vowel.
  const isEnding = term.length === PREFIX_SHORT && /[aeiouyаеиоуыэюяαεηιουω]$/u.test(term)
  return term.slice(0, isEnding ? PREFIX_SHORT - 1 : PREFIX_SHORT) + PREFIX_MARK
}

export function prefixOf(term: string): string | undefined {
  return term.endsWith(PREFIX_MARK) ? term.slice(0, -PREFIX_MARK.length) : undefined
}

const NONE: readonly string[] = []

export class QueryTerms {
  readonly #exact = new Set<string>()
  readonly #prefixes = new Set<string>()
  readonly #characters = new Set<string>()
  /** For each term of a document, the terms of the question that are similar to it. */
  readonly #similar = new Map<string, string[]>()

  constructor(terms: Iterable<string>) {
    for (const term of terms) {
      const prefix = prefixOf(term)
      if (prefix !== undefined) this.#prefixes.add(prefix)
      else if (term.length === 1 && /[^\p{ASCII}]/u.test(term)) this.#characters.add(term)
      else this.#exact.add(term)
      for (const other of synonymsOf(term))
        if (other !== term) this.#similar.set(other, [...(this.#similar.get(other) ?? []), term])
    }
  }

  /** Yields the terms of the question that match a document's term without being equal to it, such as by a common prefix. */
  *matching(term: string): Generator<string> {
    if (this.#prefixes.size > 0) {
      for (let length = PREFIX_SHORT - 1; length <= PREFIX_LONG; length++) {
        const prefix = term.slice(0, length)
        if (prefix.length === length && this.#prefixes.has(prefix)) yield prefix + PREFIX_MARK
      }
    }
    if (this.#characters.size > 0 && term.length > 1 && term.length <= 3)
      for (const character of term) if (this.#characters.has(character)) yield character
    if (this.#exact.size > 0 && term.length === 3 && /[^\p{ASCII}]/u.test(term))
      for (const part of [term.slice(0, 2), term.slice(1)]) if (this.#exact.has(part)) yield part
  }

  similar(term: string): readonly string[] {
    return this.#similar.get(term) ?? NONE
  }

  termsIn(text: string): Set<string> {
    const held = new Set<string>()
    for (const { term } of termsOf(text)) {
      if (held.has(term)) continue
      held.add(term)
      for (const asked of this.matching(term)) held.add(asked)
    }
    return held
  }
}

function setOf(words: string): Set<string> {
  return new Set(words.split(/\s+/).map(folded))
}
