import type { GenerateRequest, Logprob, Turn } from '#schemas/generate.ts'

const WORDS =
  'river stone light paper garden window copper morning signal harbor winter simple letter bridge quiet number' +
  ' forest silver engine travel yellow market planet circle summer pocket ribbon thread velvet wonder basket anchor'
const VOCABULARY = WORDS.split(' ')

/**
 * Splits a text into the echo engine's tokens: a word or one other character, each with the whitespace before it. Trailing whitespace is
 * one more token. The tokens concatenate to the text, and no character is split.
 */
export function* splitTokens(text: string): Generator<string> {
  for (const [token] of text.matchAll(/\s*(?:[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_])|\s+$/gu)) yield token
}

const PIECE_CHARS = 16 * 1024
const WORDS_AND_SIGNS = /[\p{L}\p{N}\p{M}_]+|[^\s\p{L}\p{N}\p{M}_]/gu
const ENDS_IN_WORD = /[\p{L}\p{N}\p{M}_]$/u
const BEGINS_WITH_WORD = /^[\p{L}\p{N}\p{M}_]/u

/** Counts the tokens of {@link splitTokens}. A word that spans two pieces counts once. Run it by `runYielding`. */
function* countTokens(text: string): Generator<undefined, number> {
  let count = 0
  let isInWord = false
  for (let at = 0; at < text.length; ) {
    const isPairCut = /[\ud800-\udbff]/.test(text[at + PIECE_CHARS - 1] ?? '')
    const piece = text.slice(at, at + PIECE_CHARS + (isPairCut ? 1 : 0))
    for (const _ of piece.matchAll(WORDS_AND_SIGNS)) count++
    if (isInWord && BEGINS_WITH_WORD.test(piece)) count--
    isInWord = ENDS_IN_WORD.test(piece)
    at += piece.length
    yield
  }
  return /\s$/.test(text) ? count + 1 : count
}

export function makeText(count: number, seed: number): string {
  const random = openRandom(seed)
  const words = Array.from({ length: count }, () => VOCABULARY[random() % VOCABULARY.length])
  return words.join(' ')
}

export function textOf(turn: Turn | undefined): string {
  let text = ''
  for (const part of turn?.parts ?? []) if ('text' in part) text += part.text ?? ''
  return text
}

/**
 * Counts the tokens of the prompt: all texts, tool calls and tool definitions, and one per image, sound or file. Run it by `runYielding`.
 */
export function* countPrompt(request: GenerateRequest): Generator<undefined, number> {
  let count = 0
  for (const { parts } of request.turns) {
    for (const part of parts) {
      if (part.type === 'tool_call') count += yield* countTokens(part.name + part.arguments)
      else count += 'text' in part ? yield* countTokens(part.text ?? '') : 1
    }
  }
  for (const tool of request.tools) {
    count += yield* countTokens(`${tool.name} ${tool.description ?? ''} ${JSON.stringify(tool.parameters)}`)
  }
  return count
}

/** A deterministic fake log probability of a token with `topCount` alternatives, of which the token itself is the first. */
export function inventLogprob(token: string, topCount: number): Logprob {
  const logprob = -(hash(token) % 1000) / 1000
  const top = Array.from({ length: topCount }, (_, rank) => {
    const other = rank === 0 ? token : `${token}~${rank}`
    return { token: other, logprob: logprob - rank, bytes: bytesOf(other) }
  })
  return { token, logprob, bytes: bytesOf(token), top_logprobs: top }
}

function bytesOf(text: string): number[] {
  return [...Buffer.from(text)]
}

/** FNV-1a over UTF-16 units. */
function hash(text: string): number {
  let value = 0x811c9dc5
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193)
  return value >>> 0
}

/** Mulberry32: small, seeded, good enough for filler text. */
function openRandom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let value = Math.imul(state ^ (state >>> 15), state | 1)
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61)
    return (value ^ (value >>> 14)) >>> 0
  }
}
