import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { spaced } from './text.ts'

const FILE = new URL('./questions.json', import.meta.url)
const REGULAR = /^\/(.+)\/$/s
const SPECIAL = /[.*+?^${}()|[\]\\/]/g

const Fact = z.string().min(1).describe('A word or phrase that stands by itself, or a regular expression as `/…/`.')
const Shared = {
  id: z.string().regex(/^[a-z]+-\d\d$/),
  set: z.enum(['open', 'held-out']).describe('Held-out questions are never looked at to make the feature better.'),
  question: z.string().min(1),
}

/** A question that one document answers: each one of `documents` does so alone, and holds all `facts`. */
const SingleQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('single'),
  documents: z.array(z.string()).min(1),
  facts: z.array(Fact).min(1).describe('What a report that answers the question says, however it words it.'),
})
/** A question that needs a document of each of the groups. */
const MultiQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('multi'),
  documents: z.array(z.array(z.string()).min(1)).min(2),
  facts: z.array(Fact).min(1),
})
/** A question that the corpus does not answer. */
const UnanswerableQuestion = z.strictObject({
  ...Shared,
  kind: z.literal('unanswerable'),
  absent: z.array(Fact).min(1).describe('What an answer would have to say; no document says it.'),
})

/** A question of the evaluation. */
export const Question = z.discriminatedUnion('kind', [SingleQuestion, MultiQuestion, UnanswerableQuestion])
export type Question = z.infer<typeof Question>

/** All questions of questions.json. @throws ZodError where the file is wrong */
export function readQuestions(): Question[] {
  return z.array(Question).parse(JSON.parse(readFileSync(FILE, 'utf8')))
}

/** The groups of documents of each of which an answer cites one; none for an unanswerable question. */
export function groupsOf(question: Question): readonly (readonly string[])[] {
  if (question.kind === 'unanswerable') return []
  return question.kind === 'single' ? [question.documents] : question.documents
}

/** Whether a text that {@link plain} has made says so, in capitals or not. */
export function saysFact(text: string, fact: string): boolean {
  return patternOf(fact).test(text)
}

/** The text as facts are looked for in it: without regard to white space and the form of quotation marks and hyphens. */
export function plain(text: string): string {
  return spaced(text).replace(/[‘’]/g, "'").replace(/[“”]/g, '"').replace(/[‐‑]/g, '-')
}

function patternOf(fact: string): RegExp {
  const regular = REGULAR.exec(fact)?.[1]
  if (regular !== undefined) return new RegExp(regular, 'iu')
  const literal = plain(fact).replace(SPECIAL, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_])${literal}(?![\\p{L}\\p{N}_])`, 'iu')
}
