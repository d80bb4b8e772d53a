import { describe, expect, test } from 'vitest'
import type { EmbedRequest } from '#schemas/kinds/embeddings.ts'
import { ModelConfig } from '#schemas/models.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'
import { ModelCatalogue } from '#shared/models/models.ts'
import { type CompositionOptions, Killed, MemoryComposition } from '../../support/research/composition.ts'
import { scriptedModel } from '../../support/research/model.ts'
import { PagesBackend, researched } from '../../support/research/run.ts'

/**
 * The page on doors contains the words of the question more often, so a ranking by words alone prefers this page. The page on clocks has
 * the answer.
 */
const PAGES = {
  'https://a.example/doors': '# Doors\n\nA worker opens a lease, a worker closes a lease, and a lease has a worker.',
  'https://b.example/clocks': '# Clocks\n\nThe lease of a worker is renewed every three seconds while it has a job.',
  'https://c.example/tides': '# Tides\n\nNobody at the harbour is a worker: the moon moves its water twice a day.',
}
const QUESTION = 'What about a worker and its lease?'
const NEAR = 'every three seconds'

/**
 * Simulates the embeddings pool. Texts with a line break are passages, and all others are queries. The passage with {@link NEAR} is similar
 * to queries, and the page on doors is not.
 */
async function embed({ key, body }: ChildJob): Promise<ChildEnd> {
  const { inputs } = body as EmbedRequest
  const data = inputs.map((text, index) => {
    const isNear = !String(text).includes('\n') || String(text).includes(NEAR)
    const isFar = String(text).startsWith('Doors')
    return { object: 'embedding', index, embedding: isNear ? [1, 0.1] : [isFar ? 0.1 : 0.8, 1] }
  })
  const usage = { prompt_tokens: 70, completion_tokens: 0, total_tokens: 70 }
  return { id: key, state: 'completed', result: { object: 'list', data, usage }, usage: null }
}
const failed = async ({ key }: ChildJob): Promise<ChildEnd> => {
  return { id: key, state: 'failed', error: { code: 'upstream_error', message: 'It is away.', param: null } }
}

const setup = (more: object = { embeddings: 'e-1' }) => ({ backends: [new PagesBackend(PAGES)], ...more })
async function ranked(options: CompositionOptions, request: object = {}) {
  const composition = new MemoryComposition(options)
  const run = await researched(setup(), { question: QUESTION, ...request }, composition)
  return { ...run, composition, first: run.annotations[0]?.url_citation.url }
}
const byWords = () => researched(setup({}), { question: QUESTION })
const REMARK = 'Passages were ranked by words alone, because '

describe('passages ranked by vectors', () => {
  test('rank above passages that share more words with the question', async () => {
    expect((await byWords()).annotations[0]?.url_citation.url).toBe('https://a.example/doors')
    const { composition, first, report, usage } = await ranked({ runChild: embed })
    expect(first).toBe('https://b.example/clocks')
    expect(report).not.toContain(REMARK)
    expect(usage?.input_tokens).toBe(70)
    expect(composition.children).toMatchObject([
      { key: 'embed', endpoint: '/v1/embeddings', kind: 'embed', pool: 'embeddings', model: 'e-1' },
    ])
  })

  test('have the same order in a run that is killed after any step and resumed', async () => {
    const whole = await ranked({ runChild: embed })
    for (let killAfter = 1; killAfter <= whole.composition.ran.length; killAfter++) {
      const first = new MemoryComposition({ runChild: embed, killAfter })
      await expect(researched(setup(), { question: QUESTION }, first)).rejects.toThrow(Killed)
      const second = new MemoryComposition({ runChild: embed }, first)
      expect((await researched(setup(), { question: QUESTION }, second)).events).toEqual(whole.events)
    }
  })

  test('are truncated, and embedded by one child job', async () => {
    const { composition } = await ranked({ runChild: embed }, { question: `${QUESTION} ${'🌧'.repeat(2_000)}` })
    const [child, ...others] = composition.children
    const inputs = (child?.body as EmbedRequest | undefined)?.inputs ?? []
    expect(others).toEqual([])
    expect(Math.max(...inputs.map((text) => Buffer.byteLength(String(text))))).toBe(999)
    expect(inputs.every((text) => typeof text === 'string' && text.isWellFormed())).toBe(true)
    expect(child?.deadlineInMs).toBeLessThanOrEqual(30_000)
    const short = await ranked({ runChild: embed }, { limits: { max_seconds: 10 } })
    expect(short.composition.children[0]?.deadlineInMs).toBeLessThanOrEqual(2_000)
  })

  test('are embedded once, even if the writing model fails', async () => {
    const plan = { parts: [{ question: 'How often is the lease of a worker renewed?', queries: ['lease renewed'] }] }
    const model = scriptedModel({ plan: () => plan })
    const runChild = (child: ChildJob) => (child.kind === 'embed' ? embed(child) : model.run(child))
    const composition = new MemoryComposition({ runChild })
    const both = setup({ embeddings: 'e-1', writer: { model: 'm-1' } })
    const run = await researched(both, { question: QUESTION }, composition)
    expect(composition.children.filter(({ kind }) => kind === 'embed')).toHaveLength(1)
    expect(run.end.quality.writer).toBe('extractive')
    expect(run.annotations[0]?.url_citation.url).toBe('https://b.example/clocks')
  })

  test('are not embedded if no source contains the words of the question', async () => {
    const question = 'Which treaty ended the war of the roses?'
    const { composition, report } = await ranked({ runChild: embed }, { question })
    expect(composition.children).toEqual([])
    expect(report).toBe((await researched(setup({}), { question })).report)
  })
})

describe('the fallback from vector ranking to word ranking', () => {
  const ended = (state: 'expired' | 'cancelled', code: 'job_expired' | 'job_cancelled') => {
    return async ({ key }: ChildJob): Promise<ChildEnd> => {
      return { id: key, state, error: { code, message: 'It ended.', param: null } }
    }
  }
  const changed = (change: (data: { index: number; embedding: unknown }[]) => unknown) => async (child: ChildJob) => {
    const end = await embed(child)
    if (end.state !== 'completed') return end
    const { data } = end.result as { data: { index: number; embedding: unknown }[] }
    return { ...end, result: { data: change(data) } }
  }
  const put = (at: number, embedding: unknown) =>
    changed((data) => data.map((each, index) => (index === at ? { ...each, embedding } : each)))
  const JUNK = 'the embeddings cannot be compared'

  test.each([
    ['the embeddings pool fails', failed, 'the embeddings failed (upstream_error)'],
    ['the child job was cancelled', ended('cancelled', 'job_cancelled'), 'the embeddings failed (job_cancelled)'],
    ['the embeddings are late', ended('expired', 'job_expired'), 'the embeddings were not ready in time'],
    ['a vector is missing', changed((data) => data.slice(1)), JUNK],
    ['all vectors are missing', changed(() => undefined), JUNK],
    ['the vectors are in another order', changed((data) => data.toReversed()), JUNK],
    ['a vector has another length', put(1, [1, 0, 0]), JUNK],
    ['a vector is not a list of numbers', put(1, 'AAAA'), JUNK],
    ['a vector contains null', put(1, [null, 'x']), JUNK],
    ['a vector is zero', put(1, [0, 0]), JUNK],
    ['a vector is empty', put(0, []), JUNK],
    ['a vector has infinite length', put(1, [1e308, 1e308]), JUNK],
  ])('occurs with a remark in the report if %s', async (_, runChild, reason) => {
    const { annotations, end, report } = await ranked({ runChild })
    expect(report).toContain(`${REMARK}${reason}.`)
    expect(annotations).toEqual((await byWords()).annotations)
    expect(end).toMatchObject({ stop_reason: 'answered', finish_reason: 'stop' })
  })

  test('occurs with a remark in the report if the token budget is too small', async () => {
    const { composition, report } = await ranked({ runChild: embed }, { limits: { max_tokens: 20 } })
    expect(report).toContain(`${REMARK}the token budget of the research is too small for embeddings.`)
    expect(composition.children).toEqual([])
  })

  test('is kept by later attempts if the run was cancelled during the ranking', async () => {
    const cancel = new AbortController()
    const runChild = () => {
      cancel.abort()
      return new Promise<never>(() => {})
    }
    const cut = await ranked({ runChild, cancelled: cancel.signal })
    expect(cut.report).toContain(`${REMARK}the research had to end early.`)
    const again = new MemoryComposition({ runChild: embed }, cut.composition)
    const { report } = await researched(setup(), { question: QUESTION }, again)
    expect(report).toBe(cut.report)
  })
})

test('the catalogue refuses a research model whose ranking model does not make embeddings', () => {
  const chat = { id: 'm-1', engine: { type: 'echo' } }
  const vectors = { id: 'e-1', pool: 'embeddings', engine: { type: 'local', model: 'all-minilm-l6-v2' } }
  const catalogue = (embeddings: string) => {
    const research = { id: 'dr', pool: 'research', engine: { type: 'research', embeddings } }
    return new ModelCatalogue([chat, vectors, research].map((model) => ModelConfig.parse(model)))
  }
  expect(catalogue('e-1').find('dr')?.engine).toEqual({ type: 'research', embeddings: 'e-1' })
  for (const wrong of ['m-1', 'dr', 'e-2'])
    expect(() => catalogue(wrong)).toThrow(`dr has the embeddings model ${wrong}, which is not an embeddings model`)
})
