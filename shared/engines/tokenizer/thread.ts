import { parentPort } from 'node:worker_threads'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import type { TokenEncoding, TokenizerReply, TokenizerTask } from './tokenizer.ts'

/**
 * Maximum characters per tokenizer call. The cost of the tokenizer grows with the square of the length of a run without spaces. A run of 60,000
 * letters takes 8 s, and a run of this maximum takes 2 ms.
 */
const SLICE_CHARS = 1_024
/** By default, the tokenizer throws an error for text that looks like a special token (<|endoftext|>). With this option, such text is counted. */
const PLAIN = { disallowedSpecial: new Set<string>() }

type Rank = string | readonly number[]

interface Vocabulary {
  readonly ranks: readonly (Rank | undefined)[]
  readonly specials: ReadonlyMap<number, string>
  count(text: string): number
}

const LOADERS = { cl100k_base: loadCl100k, o200k_base: loadO200k }
const loaded = new Map<TokenEncoding, Promise<Vocabulary>>()

parentPort?.on('message', async (task: TokenizerTask) => parentPort?.postMessage(await replyTo(task)))

async function replyTo({ encoding, text, ids }: TokenizerTask): Promise<TokenizerReply> {
  let vocabulary = loaded.get(encoding)
  if (!vocabulary) {
    vocabulary = LOADERS[encoding]()
    loaded.set(encoding, vocabulary)
  }
  return text === undefined ? decode(await vocabulary, ids) : { tokens: count(await vocabulary, text) }
}

async function loadCl100k(): Promise<Vocabulary> {
  const { countTokens } = await import('gpt-tokenizer/encoding/cl100k_base')
  const { default: ranks } = await import('gpt-tokenizer/bpeRanks/cl100k_base')
  const { Cl100KBase } = await import('gpt-tokenizer/encodingParams/cl100k_base')
  return vocabularyOf(ranks, Cl100KBase(ranks).specialTokensEncoder, (text) => countTokens(text, PLAIN))
}

async function loadO200k(): Promise<Vocabulary> {
  const { countTokens } = await import('gpt-tokenizer/encoding/o200k_base')
  const { default: ranks } = await import('gpt-tokenizer/bpeRanks/o200k_base')
  const { O200KBase } = await import('gpt-tokenizer/encodingParams/o200k_base')
  return vocabularyOf(ranks, O200KBase(ranks).specialTokensEncoder, (text) => countTokens(text, PLAIN))
}

function vocabularyOf(
  ranks: readonly Rank[],
  specials: ReadonlyMap<string, number>,
  count: Vocabulary['count'],
): Vocabulary {
  return { ranks, specials: new Map([...specials].map(([text, id]) => [id, text])), count }
}

function count(vocabulary: Vocabulary, text: string): number {
  let tokens = 0
  for (let at = 0; at < text.length; ) {
    const end = cutAfter(text, at, SLICE_CHARS)
    tokens += vocabulary.count(text.slice(at, end))
    at = end
  }
  return tokens
}

function decode({ ranks, specials }: Vocabulary, ids: readonly number[]): TokenizerReply {
  const parts: Buffer[] = []
  for (const [place, id] of ids.entries()) {
    const value = ranks[id] ?? specials.get(id)
    if (value === undefined) return { unknown: place }
    parts.push(typeof value === 'string' ? Buffer.from(value) : Buffer.from(value))
  }
  return { text: Buffer.concat(parts).toString('utf8') }
}
