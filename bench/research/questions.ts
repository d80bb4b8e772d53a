import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { spaced } from './text.ts'

const FILE = new URL('./questions.json', import.meta.url)
const REGULAR = /^\/(.+)\/$/s
const SPECIAL = /[.*+?^${}()|[\]\\/]/g

const Fact = z.string().min(1).describe('A separate word or phrase, or a regular expression as `/…/`.')
const Shared = {
  id: z.string().regex(/^[a-z]+-\d\d$/),
  set: z.enum(['open', 'held-out']).describe('Held-out questions are not read during development.'),
  question: z.string().min(1),
}

const SingleQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('single'),
  documents: z.array(z.string()).min(1),
  facts: z.array(Fact).min(1).describe('Parts of a correct answer.'),
})
const MultiQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('multi'),
  documents: z.array(z.array(z.string()).min(1)).min(2),
  facts: z.array(Fact).min(1),
})
const UnanswerableQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('unanswerable'),
  absent: z.array(Fact).min(1).describe('Parts of an answer that no document contains.'),
})

export const Question = z.discriminatedUnion('kind', [SingleQuestion, MultiQuestion, UnanswerableQuestion])
export type Question = z.infer<typeof Question>

export function readQuestions(): Question[] {
  return z.array(Question).parse(JSON.parse(readFileSync(FILE, 'utf8')))
}

/** Returns groups of documents. An answer must cite one document of each group. An unanswerable question has no groups. */
export function groupsOf(question: Question): readonly (readonly string[])[] {
  if (question.kind === 'unanswerable') return []
  return question.kind === 'single' ? [question.documents] : question.documents
}

/** Whether a text contains a fact, regardless of case. The text must be normalized by {@link plain}. */
export function containsFact(text: string, fact: string): boolean {
  return patternOf(fact).test(text)
}

export function plain(text: string): string {
  return spaced(text).replace(/[‘’]/g, "'").replace(/[“”]/g, '"').replace(/[‐‑]/g, '-')
}

function patternOf(fact: string): RegExp {
  const regular = REGULAR.exec(fact)?.[1]
  if (regular !== undefined) return new RegExp(regular, 'iu')
  const literal = plain(fact).replace(SPECIAL, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_])${literal}(?![\\p{L}\\p{N}_])`, 'iu')
}
