import { describe, expect, test } from 'vitest'
import type { EncodeContext } from '#schemas/job.ts'
import { type ResearchAnnotation, type ResearchEvent, ResearchRequest } from '#schemas/kinds/research.ts'
import { type ResearchCompletion, research } from '#shared/kinds/research/research.ts'

const CONTEXT: EncodeContext = {
  request_id: 'req_1',
  call_id: 'c1',
  created_at: 1_790_000_000,
  model: 'dr',
  include_usage: true,
  version: '',
}
const ANNOTATION: ResearchAnnotation = {
  type: 'url_citation',
  url_citation: {
    start_index: 12,
    end_index: 15,
    title: 'Jobs',
    url: 'docs/guides/jobs.md',
    quote: 'A 202 is kept.',
    source_sha256: 'ab',
    source_start: 3,
    source_end: 17,
  },
}
const progress = (sequence: number): ResearchEvent => ({
  type: 'progress',
  sequence,
  phase: 'searching',
  percent: 10 * sequence,
  message: 'Searching',
  queries: 2,
  sources_found: 1,
  sources_read: 0,
})
const END: ResearchEvent = {
  type: 'end',
  stop_reason: 'answered',
  finish_reason: 'stop',
  quality: { writer: 'extractive', supported: 1, quoted: 0, dropped: 0, unread: 0, failed_searches: 0, gaps: [] },
}
const EVENTS: readonly ResearchEvent[] = [
  progress(1),
  progress(2),
  { type: 'text', text: 'A 202 is ' },
  { type: 'text', text: 'kept. [1]' },
  { type: 'annotations', annotations: [ANNOTATION] },
  { type: 'search_results', results: [{ title: 'Jobs', url: 'docs/guides/jobs.md', snippet: 'A 202 …' }] },
  { type: 'usage', usage: { input_tokens: 7, output_tokens: 5, searches: 2, pages: 1, cost_usd: 0 } },
  END,
]

describe('the response of a research job', () => {
  test('is a chat completion with annotations, search_results and citations', () => {
    const answer = research.answer().whole(EVENTS, CONTEXT) as ResearchCompletion
    expect(answer).toMatchObject({
      object: 'chat.completion',
      model: 'dr',
      choices: [{ message: { content: 'A 202 is kept. [1]', annotations: [ANNOTATION] }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 },
      search_results: [{ url: 'docs/guides/jobs.md' }],
      citations: ['docs/guides/jobs.md'],
      research: { stop_reason: 'answered', searches: 2, pages: 1, supported: 1 },
    })
  })

  test('fails if the end event is missing', () => {
    expect(() => research.answer().whole(EVENTS.slice(0, -1), CONTEXT)).toThrow('without finishing')
  })

  test('is streamed as chunks: one chunk has all annotations, and the last chunk has the usage', () => {
    const chunks = chunksOf(EVENTS)
    expect(chunks.every(({ choices }) => Array.isArray(choices))).toBe(true)
    expect(new Set(chunks.map(({ id, model }) => `${id} ${model}`))).toEqual(new Set(['chatcmpl-c1 dr']))
    const deltas = chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta))
    expect(deltas.map(({ content }) => content ?? '').join('')).toBe('A 202 is kept. [1]')
    expect(deltas.flatMap(({ annotations }) => (annotations ? [annotations] : []))).toEqual([[ANNOTATION]])
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: 12 } })
    expect(chunks.slice(0, -1).every(({ usage }) => usage === null)).toBe(true)
    expect(chunks.at(-2)?.choices[0]?.finish_reason).toBe('stop')
  })

  test('has each progress number once in the stream, even if the job is resumed', () => {
    const again = [progress(1), progress(2), progress(1), progress(2), progress(3), ...EVENTS.slice(2)]
    const said = chunksOf(again).flatMap(({ research_progress }) => (research_progress ? [research_progress] : []))
    expect(said.map(({ sequence }) => sequence)).toEqual([1, 2, 3])
    expect(said[0]).toEqual({ ...progress(1), type: undefined })
  })

  test('fails during streaming if the end event is missing', () => {
    const stream = research.answer().open?.(CONTEXT)
    for (const event of EVENTS.slice(0, -1)) stream?.push(event)
    expect(() => stream?.end()).toThrow('without finishing')
  })
})

describe('the job kind research', () => {
  test('merges adjacent short texts, but neither long texts nor progress', () => {
    const text = (length: number): ResearchEvent => ({ type: 'text', text: 'x'.repeat(length) })
    expect(research.merge(text(3), text(4))).toEqual(text(7))
    expect(research.merge(text(16_000), text(1_000))).toBeUndefined()
    expect(research.merge(progress(1), progress(2))).toBeUndefined()
  })

  test('counts every event except progress as output', () => {
    expect(EVENTS.filter((event) => !research.isOutput(event))).toEqual([progress(1), progress(2)])
  })

  test.each([
    ['no question', { question: '' }],
    ['too many sources', { limits: { max_sources: 51 } }],
    ['a maximum of zero sources', { limits: { max_sources: 0 } }],
    ['an unknown effort', { effort: 'extreme' }],
    ['an unknown citation mode', { citations: 'none' }],
    ['a host name of 254 characters', { domains: { allow: ['x'.repeat(254)] } }],
  ])('refuses a request with %s', (_, change) => {
    expect(ResearchRequest.safeParse({ model: 'dr', question: 'Why?', ...change }).success).toBe(false)
  })
})

interface Chunk {
  id: string
  model: string
  choices: { delta: { content?: string; annotations?: unknown[] }; finish_reason: string | null }[]
  usage?: object | null
  research_progress?: { sequence: number }
}

function chunksOf(events: readonly ResearchEvent[]): Chunk[] {
  const stream = research.answer().open?.(CONTEXT)
  if (!stream) throw new Error('The request is not streamed.')
  const frames = [...events.flatMap((event) => stream.push(event)), ...stream.end()]
  return frames.map(({ data }) => JSON.parse(data) as Chunk)
}
