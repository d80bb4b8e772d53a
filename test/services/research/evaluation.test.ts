/*
 * Tests of research with questions about the pages of this project, which are the corpus of every installation. Each answerable question
 * names the page that must be cited. The other questions must not be answered.
 *
 * These tests check a minimum and are no benchmark, because the thresholds of research were chosen with questions of the same kind.
 */

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type LocalCorpus, openLocalCorpus } from '#shared/search/local/local.ts'
import { researched, spansOf } from '../../support/research/run.ts'

const ROOT = join(import.meta.dirname, '../../..')

const ANSWERABLE: readonly [question: string, page: string][] = [
  ['How long is a finished job kept, and what happens when its result is over?', 'docs/guides/jobs.md'],
  ['How are webhooks signed, and how often are they tried again?', 'docs/guides/webhooks.md'],
  ['What does a worker do when it could not renew its lease?', 'docs/internals/design.md'],
  ['Which sandboxes can run Python code and how is one chosen?', 'docs/guides/code.md'],
  ['What is the largest audio file that can be transcribed?', 'docs/guides/transcription.md'],
  ['What does an Idempotency-Key do?', 'docs/guides/jobs.md'],
  ['How are texts of many jobs batched for embeddings?', 'docs/guides/embeddings.md'],
  ['What happens to requests of a WebSocket when its connection closes?', 'docs/guides/websocket.md'],
  ['Which errors are repeated, and at most how many tries does a job have?', 'docs/internals/design.md'],
  ['What does the scripted echo model answer?', 'docs/guides/echo.md'],
]

const UNANSWERABLE: readonly string[] = [
  'What is the capital of France?',
  'How do I bake sourdough bread at high altitude?',
  'Who won the football world cup in 1998?',
  'How does photosynthesis convert sunlight into sugar?',
  'What is the monthly price of a subscription?',
  'Which GPU does the company recommend for gaming?',
  'When was the Treaty of Westphalia signed?',
  'How do I configure OAuth login with Google?',
]

let directory: string
let corpus: LocalCorpus
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-evaluation-'))
  corpus = openLocalCorpus({ corpus: { directory: ROOT, paths: ['README.md', 'docs'] }, directory })
  await corpus.refresh()
})
afterAll(async () => {
  await corpus.close()
  await rm(directory, { recursive: true })
})

describe("research of the project's own documentation", () => {
  test.each(ANSWERABLE)('answers "%s" from %s, with exact citations', async (question, page) => {
    const run = await researched({ backends: [corpus] }, { question })
    expect(run.annotations.map(({ url_citation }) => url_citation.url)).toContain(page)
    expect(run.end.stop_reason).toBe('answered')
    for (const { url_citation: cited } of run.annotations) {
      const hit = { url: cited.url, title: '', snippet: '', sha256: cited.source_sha256 }
      const { text } = await corpus.read(hit, {
        domains: { allow: [], deny: [] },
        project: 'prj_1',
        signal: new AbortController().signal,
      })
      expect(Array.from(text).slice(cited.source_start, cited.source_end).join('')).toBe(cited.quote)
    }
    expect(spansOf(run).every(({ marker }) => /^\[\d+\]$/.test(marker))).toBe(true)
  })

  test.each(UNANSWERABLE)('has no answer to "%s"', async (question) => {
    const run = await researched({ backends: [corpus] }, { question })
    expect(run.annotations).toEqual([])
    expect(run.end.stop_reason).toBe('no_evidence')
  })

  test('sends the same events in two runs', async () => {
    const [question] = ANSWERABLE[0] ?? ['']
    const [a, b] = [
      await researched({ backends: [corpus] }, { question }),
      await researched({ backends: [corpus] }, { question }),
    ]
    expect(a.events).toEqual(b.events)
  })
})
