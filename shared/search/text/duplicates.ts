/*
 * Detects duplicate sources, so that mirrors and syndicated texts count as one source.
 *
 * Texts with equal words are duplicates. Texts with similar SimHashes are duplicates too (Charikar 2002; Manku, Jain and Das Sarma 2007).
 *
 * Exception: if a sentence of one text is a changed copy of a sentence of the other text, then the texts count as separate sources.
 * Examples are pages that are generated from one template with different numbers.
 */
import { sha256Of } from '#shared/search/search.ts'

/** Maximum number of bits in which the 64-bit hashes of near-duplicates differ. */
const DISTANCE_MAX = 3
const GRAM = 3
/** Minimum n-grams for a comparison by SimHash. In a shorter text, a single n-gram changes many bits of the hash. */
const GRAMS_MIN = 60
/**
 * Minimum fraction of a sentence's n-grams that occur in the other text. From this fraction on, the sentence counts as a changed copy of a sentence
 * of that text.
 */
const VARIANT_SHARE = 0.4
/** Minimum words of a sentence that is compared by n-grams. A shorter sentence counts as a changed copy if it contains a number. */
const VARIANT_WORDS = 4
const WORDS_PER_YIELD = 200

const WORD = /[\p{L}\p{N}]+/gu

export interface TextPrint {
  readonly sha256: string
  readonly high: number
  readonly low: number
  readonly grams: ReadonlySet<number>
  /** The words of each sentence in lower case, joined by spaces. */
  readonly sentences: ReadonlySet<string>
}

export function* printOf(text: string): Generator<void, TextPrint> {
  const sum = { high: new Int32Array(32), low: new Int32Array(32) }
  const grams = new Set<number>()
  const sentences = new Set<string>()
  let last: string[] = []
  for (const piece of text.split(/(?<=[.!?])\s+|\n+/)) {
    const words: string[] = []
    for (const [word] of piece.normalize('NFKC').toLowerCase().matchAll(WORD)) {
      words.push(word)
      last = [...last.slice(1 - GRAM), word]
      if (last.length === GRAM) addGram(last.join(' '), grams, sum)
      if (words.length % WORDS_PER_YIELD === 0) yield
    }
    if (words.length > 0) sentences.add(words.join(' '))
    yield
  }
  return { sha256: sha256Of([...sentences].join(' ')), high: bitsOf(sum.high), low: bitsOf(sum.low), grams, sentences }
}

/** Whether a text repeats another text without adding information. Yields to the event loop between sentences. */
export function* isRepeat(text: TextPrint, other: TextPrint): Generator<void, boolean> {
  if (text.sha256 === other.sha256) return true
  if (Math.min(text.grams.size, other.grams.size) < GRAMS_MIN) return false
  if (onesIn(text.high ^ other.high) + onesIn(text.low ^ other.low) > DISTANCE_MAX) return false
  for (const sentence of text.sentences) {
    if (!other.sentences.has(sentence) && isVariant(sentence, other)) return false
    yield
  }
  return true
}

function isVariant(sentence: string, { grams }: TextPrint): boolean {
  const words = sentence.split(' ')
  if (words.length < VARIANT_WORDS) return /\p{N}/u.test(sentence)
  let shared = 0
  const all = words.length - GRAM + 1
  for (let at = 0; at < all; at++) if (grams.has(hashOf(words.slice(at, at + GRAM).join(' '), LOW))) shared++
  return shared >= VARIANT_SHARE * all
}

const HIGH = 0x811c9dc5
const LOW = 0x1b873593

function addGram(gram: string, grams: Set<number>, sum: { high: Int32Array; low: Int32Array }): void {
  const low = hashOf(gram, LOW)
  // A repeated n-gram counts only once. Otherwise a phrase that occurs often would dominate the hash.
  if (grams.has(low)) return
  grams.add(low)
  vote(sum.low, low)
  vote(sum.high, hashOf(gram, HIGH))
}

function vote(sum: Int32Array, hash: number): void {
  for (let bit = 0; bit < 32; bit++) sum[bit] = (sum[bit] ?? 0) + ((hash >>> bit) & 1 ? 1 : -1)
}

function bitsOf(sum: Int32Array): number {
  let bits = 0
  for (let bit = 0; bit < 32; bit++) if ((sum[bit] ?? 0) > 0) bits |= 1 << bit
  return bits
}

/** FNV-1a with the finalizer of MurmurHash3, because FNV-1a alone gives similar hashes to words with equal endings. */
function hashOf(text: string, start: number): number {
  let hash = start
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return hash ^ (hash >>> 16)
}

function onesIn(bits: number): number {
  let ones = 0
  for (let rest = bits; rest !== 0; rest &= rest - 1) ones++
  return ones
}
