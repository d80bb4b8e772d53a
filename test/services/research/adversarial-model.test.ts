/*
 * Tests of research with an adversarial model. The model writes false claims, supports each claim when it judges claims, and repeats each
 * claim when it should correct them. The report must contain no false claim, except as a verbatim quote of the cited page.
 */

import { describe, expect, test } from 'vitest'
import { MemoryComposition } from '../../support/research/composition.ts'
import { FALSIFICATIONS, type Falsification, falsify, type Quote } from '../../support/research/false-claims.ts'
import { scriptedModel } from '../../support/research/model.ts'
import { PagesBackend, researched } from '../../support/research/run.ts'

const PAGES = {
  'https://a.example/hooks': `# Hooks of a repository\n\nThe hook of a repository is allowed to run for 30 seconds, as Junio wrote.\n\n
    The hook must be enabled before the first push to Berlin.`,
  'https://b.example/push': `# Push to a repository\n\nA push to a repository is always checked after the hook of Linus, in 12 steps.\n\n
    The most recent version added a new hook for the repository in Oslo.`,
}
const QUESTION = 'How long is the hook of a repository allowed to run?'

const QUOTE = { id: 'q1', text: 'The hook is allowed to run for 30 seconds, as Junio wrote.' }
const OTHER = { id: 'q2', text: 'Ferries cross the bay.' }

describe('a false claim that the test derives from a quote', () => {
  test.each<[Falsification, string]>([
    ['number', 'The hook is allowed to run for 33 seconds, as Junio wrote.'],
    ['name', 'The hook is allowed to run for 30 seconds, as Zorbax wrote.'],
    ['negation', 'The hook is not allowed to run for 30 seconds, as Junio wrote.'],
    ['reworded denial', 'In practice such a hook is hardly ever allowed to run for 30 seconds, as Junio wrote.'],
    ['opposite', 'As a rule the hook is forbidden to run for 30 seconds, as Junio wrote.'],
    ['attribution', 'According to Gartner, the hook is allowed to run for 30 seconds, as Junio wrote.'],
    ['other page', OTHER.text],
    ['no such quote', OTHER.text],
  ])('has the expected text for a falsification of the kind "%s"', (kind, text) => {
    expect(falsify(kind, QUOTE, OTHER)?.text).toBe(text)
  })
})

test.each(FALSIFICATIONS)('a research report contains no false claim of the kind "%s"', async (kind) => {
  const claims = new Set<string>()
  const model = scriptedModel({
    plan: () => ({ parts: [{ question: QUESTION, queries: ['hook repository', 'push repository'] }] }),
    note: ({ data }) => {
      const quotes = data.quotes as Quote[]
      const falsified = quotes.flatMap((quote, at) => falsify(kind, quote, quotes[(at + 1) % quotes.length]) ?? [])
      for (const { text } of falsified) claims.add(plain(text))
      return { claims: falsified.slice(0, 8) }
    },
    write: ({ data }) => {
      const sentences = (data.claims as { id: string; text: string }[]).map(({ id, text }) => ({ text, claims: [id] }))
      return { summary: sentences.slice(0, 3), sections: [{ title: 'More', sentences: sentences.slice(3, 14) }] }
    },
    judge: ({ data }) => ({
      verdicts: (data.pairs as { id: string }[]).map(({ id }) => ({ id, verdict: 'supported' })),
    }),
    repair: ({ data }) => ({
      rewrites: (data.claims as { id: string; claim: string }[]).map(({ id, claim }) => ({ id, text: claim })),
    }),
  })
  const composition = new MemoryComposition({ runChild: model.run })
  const setup = { backends: [new PagesBackend(PAGES)], writer: { model: 'm-1' } }
  const { report, annotations } = await researched(setup, { question: QUESTION }, composition)
  expect(claims.size, 'false claims of the model').toBeGreaterThan(0)
  expect(annotations.length, 'citations of the report').toBeGreaterThan(0)
  const quotes = new Set(annotations.map(({ url_citation }) => plain(url_citation.quote)))
  const statements = report.split(/\n|(?<=\[\d+\]) (?!\[\d)/).map(plain)
  expect(statements.filter((statement) => claims.has(statement) && !quotes.has(statement))).toEqual([])
})

/** Reduces a statement to its letters and digits, without citations, so that statements can be compared. */
function plain(text: string): string {
  return text
    .replace(/ ?\[\d+\]/g, '')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()
}
