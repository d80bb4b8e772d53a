import { createHash } from 'node:crypto'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { type Answer, type ScriptedUpstream, type SeenCall, startUpstream } from '../../support/processes/upstream.ts'
import { dataOf } from '../../support/sse.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../support/stack.ts'
import { openWs } from '../../support/ws.ts'

const PATH = '/v1/deep-research'
const MODEL = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
/**
 * Research model whose writer is echo-1. The output of echo-1 matches the requested JSON schema, but repeats no statement of a source, so no part of
 * the output may be cited.
 */
const WRITTEN = { id: 'deep-research-written', pool: 'research', engine: { type: 'research', writer: 'echo-1' } }
const QUESTION = 'Where do herons build their nests, and what do they eat?'
const kafka = inject('kafka') ?? undefined

const HERONS = `# Herons

Herons build their nests in tall trees near water, often many in one colony.

They eat fish and frogs, which they catch by standing still in shallow water.
`

interface Completion {
  readonly object: string
  readonly choices: readonly {
    readonly finish_reason: string
    readonly message: { readonly content: string; readonly annotations: readonly Citation[] }
  }[]
  readonly citations: readonly string[]
  readonly usage: { readonly total_tokens: number }
}

interface Citation {
  readonly url_citation: { start_index: number; end_index: number; url: string; quote: string }
}

interface WireJob {
  readonly id: string
  readonly status: string
  readonly result: Completion | null
  readonly attempt: number
  readonly progress: object | null
  readonly steps: readonly { readonly kind: string }[]
  readonly children: readonly { readonly id: string; readonly model: string; readonly status: string }[]
}

const ask = (question: string, more: object = {}) => ({
  model: 'deep-research',
  messages: [{ role: 'user', content: question }],
  ...more,
})

for (const mode of ['embedded', 'Kafka']) {
  describe.skipIf(mode === 'Kafka' && !kafka)(`the deep research endpoint, ${mode}`, () => {
    let stack: Stack
    let folder: string
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'sluice-herons-'))
      await mkdir(join(folder, 'birds'))
      await writeFile(join(folder, 'birds', 'herons.md'), HERONS)
      await writeFile(join(folder, 'owls.txt'), 'Owls hunt mice at night. They fly without a sound.\n')
      const settings = { RESEARCH_CORPUS: folder }
      stack = await startStack({ ...(mode === 'Kafka' && { kafka }), models: [ECHO_MODEL, MODEL, WRITTEN], settings })
    })
    afterAll(async () => {
      await stack[Symbol.asyncDispose]()
      await rm(folder, { recursive: true, force: true })
    })

    const jobOf = async (id: string, query = '?wait=30') =>
      (await (await stack.get(`/v1/jobs/${id}${query}`)).json()) as WireJob

    it('deep research returns a report whose markers each cite a sentence of a source', async () => {
      const response = await stack.post(PATH, ask(QUESTION))
      expect(response.status).toBe(200)
      const { object, choices, citations } = (await response.json()) as Completion
      expect(object).toBe('chat.completion')
      const [choice] = choices
      const { content, annotations } = choice?.message ?? { content: '', annotations: [] }
      expect(content).toContain('tall trees near water')
      expect(content).toContain('fish and frogs')
      expect(choice?.finish_reason).toBe('stop')
      expect(citations).toEqual(['birds/herons.md'])
      expect(annotations.length).toBeGreaterThan(1)
      const points = Array.from(content)
      for (const { url_citation: cited } of annotations) {
        expect(points.slice(cited.start_index, cited.end_index).join('')).toMatch(/^\[\d+\]$/)
        expect(HERONS).toContain(cited.quote)
      }
    })

    it('deep research returns a report without citations if the sources do not answer', async () => {
      const response = await stack.post(PATH, ask('What is the melting point of tungsten?'))
      const { choices } = (await response.json()) as Completion
      expect(choices[0]?.message.annotations).toEqual([])
      expect(choices[0]?.message.content).toContain('do not answer')
    })

    it('deep research streams progress in chunks without choices, then the report, then all citations', async () => {
      const response = await stack.post(PATH, ask(QUESTION, { stream: true, stream_options: { include_usage: true } }))
      const text = await response.text()
      expect(text.trimEnd()).toMatch(/data: \[DONE\]$/)
      const chunks = dataOf(text).map((frame) => JSON.parse(frame))
      const progress = chunks.filter((chunk) => chunk.research_progress)
      expect(progress.map((chunk) => chunk.choices)).toEqual(progress.map(() => []))
      expect(progress.map((chunk) => chunk.research_progress.sequence)).toEqual(progress.map((_, at) => at + 1))
      const cited = chunks.filter((chunk) => chunk.choices[0]?.delta.annotations)
      expect(cited).toHaveLength(1)
      const content = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')
      expect(content).toContain('fish and frogs')
      expect(chunks.at(-1).usage).toMatchObject({ total_tokens: 0 })
      expect(chunks.indexOf(cited[0])).toBeGreaterThan(chunks.lastIndexOf(progress.at(-1)))
    })

    it('deep research runs in the background, and stores its steps', async () => {
      const accepted = await stack.post(PATH, ask(QUESTION, { background: true }))
      expect(accepted.status).toBe(202)
      const { id } = (await accepted.json()) as WireJob
      const job = await jobOf(id)
      expect(job.status).toBe('completed')
      expect(job.steps.map(({ kind }) => kind)).toEqual(expect.arrayContaining(['search', 'read']))
      expect(job.progress).toMatchObject({ phase: 'finalizing', percent: 100 })
      const recorded: { number: number; kind: string; input: { url?: string } | null; output: unknown }[] = []
      for (let hasMore = true; hasMore; ) {
        const path = `/v1/jobs/${id}/steps?limit=3&after=${recorded.length}`
        const page = (await (await stack.get(path)).json()) as { data: typeof recorded; has_more: boolean }
        expect(page.data.length).toBeLessThanOrEqual(3)
        recorded.push(...page.data)
        hasMore = page.has_more
      }
      expect(recorded.map(({ number, kind }) => `${number} ${kind}`)).toEqual(
        job.steps.map(({ kind }, at) => `${at + 1} ${kind}`),
      )
      const read = recorded.find(({ kind, input }) => kind === 'read' && input?.url === 'birds/herons.md')
      expect(read?.output).toMatchObject({ text: expect.stringContaining('tall trees near water') })
      for (const query of ['limit=0', 'limit=21', 'after=x', 'first=1'])
        expect((await stack.get(`/v1/jobs/${id}/steps?${query}`)).status).toBe(400)
      expect((await stack.get('/v1/jobs/job_00000000000000000000/steps')).status).toBe(404)
      const result = (await (await stack.get(`/v1/jobs/${id}/result`)).json()) as Completion
      expect(result).toEqual(job.result)
      const replay = (await (await stack.post(`/v1/jobs/${id}/replay`, {})).json()) as WireJob
      const replayed = await jobOf(replay.id)
      expect(replayed).toMatchObject({ status: 'completed', result: { choices: result.choices } })
      expect(replayed.steps.map(({ kind }) => kind)).toEqual(job.steps.map(({ kind }) => kind))
      const again = (await (await stack.post(PATH, ask(QUESTION))).json()) as Completion
      expect(again.choices[0]?.message).toEqual(result.choices[0]?.message)
    })

    it('deep research lets a model plan and write in child jobs, and cites no sentence that the model invented', async () => {
      const accepted = await stack.post(PATH, ask(QUESTION, { model: WRITTEN.id, background: true }))
      const { id } = (await accepted.json()) as WireJob
      const job = await jobOf(id)
      expect(job.status).toBe('completed')
      expect(job.children.length).toBeGreaterThan(0)
      expect(new Set(job.children.map(({ model, status }) => `${model} ${status}`))).toEqual(
        new Set(['echo-1 completed']),
      )
      // A research releases its slot while it waits for child jobs. The continuation counts as a new attempt.
      expect(job.attempt).toBeGreaterThan(1)
      const replay = (await (await stack.post(`/v1/jobs/${id}/replay`, {})).json()) as WireJob
      const { status, result, attempt, children } = await jobOf(replay.id)
      expect({ status, attempt, children }).toEqual({ status: 'completed', attempt: 1, children: [] })
      expect(result?.choices).toEqual(job.result?.choices)
      for (const { url_citation: cited } of job.result?.choices[0]?.message.annotations ?? []) {
        expect(HERONS).toContain(cited.quote)
      }
    })

    it('deep research streams each progress event once, however often the run waits for a model', async () => {
      const response = await stack.post(PATH, ask(QUESTION, { model: WRITTEN.id, stream: true }))
      const chunks = dataOf(await response.text()).map((frame) => JSON.parse(frame))
      const told = chunks.flatMap((chunk) => chunk.research_progress?.sequence ?? [])
      expect(told).toEqual(told.map((_, at) => at + 1))
      expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toContain('fish and frogs')
    })

    it('deep research returns 404 for a research job of another key', async () => {
      const secret = 'sk-of-somebody-else'
      const hash = createHash('sha256').update(secret).digest('hex')
      const key = { id: 'key_else', hash, hint: 'sk-...', created_at: 1_790_000_000 }
      await writeFile(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [key] }))
      const theirs = { headers: { authorization: `Bearer ${secret}` } }
      await until(async () => (await stack.get('/v1/models', theirs)).status === 200)
      const { id } = (await (await stack.post(PATH, ask(QUESTION, { background: true }))).json()) as WireJob
      expect((await jobOf(id)).steps.length).toBeGreaterThan(0)
      const missing = id.replace(/.{4}$/, '0000')
      for (const job of [id, missing]) {
        for (const end of ['', '/result', '/events', '?wait=1']) {
          const response = await stack.get(`/v1/jobs/${job}${end}`, theirs)
          expect([end, response.status]).toEqual([end, 404])
          expect(JSON.stringify(await response.json()).replaceAll(job, 'X')).toContain('job_not_found')
        }
        expect((await stack.post(`/v1/jobs/${job}/cancel`, {}, theirs)).status).toBe(404)
      }
      const listed = (await (await stack.get('/v1/jobs', theirs)).json()) as { data: unknown[] }
      expect(listed.data).toEqual([])
    })

    it('deep research streams the same events over a WebSocket and over HTTP', async () => {
      using client = await openWs(stack)
      client.send({ type: 'request.create', id: 'r1', endpoint: PATH, body: ask(QUESTION, { stream: true }) })
      expect((await client.end('r1')).type).toBe('request.completed')
      type Chunk = { choices: { delta: { content?: string } }[]; research_progress?: { sequence: number } }
      const chunks = client
        .about('r1')
        .flatMap((frame) => (frame.type === 'request.event' ? [frame.event as Chunk] : []))
      const told = chunks.flatMap(({ research_progress }) => research_progress?.sequence ?? [])
      expect(told.length).toBeGreaterThan(3)
      expect(told).toEqual(told.map((_, at) => at + 1))
      expect(chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')).toContain('fish and frogs')
    })

    it('deep research uses only the sources that the caller allows', async () => {
      const response = await stack.post(PATH, ask(QUESTION, { domains: { deny: ['local'] } }))
      const { choices } = (await response.json()) as Completion
      expect(choices[0]?.message.annotations).toEqual([])
      expect(choices[0]?.message.content).toContain('The allowed domains of the request exclude all sources.')
    })
  })
}

describe('a research whose writing model sends too much output', () => {
  let stack: Stack
  let folder: string
  let upstream: ScriptedUpstream
  beforeAll(async () => {
    upstream = await startUpstream()
    folder = await mkdtemp(join(tmpdir(), 'sluice-floods-'))
    await writeFile(join(folder, 'herons.md'), HERONS)
    const writer = { ...ECHO_MODEL, id: 'writer-1', engine: { type: 'openai', base_url: `${upstream.url}/v1` } }
    const model = { id: 'deep-research-flooded', pool: 'research', engine: { type: 'research', writer: 'writer-1' } }
    stack = await startStack({ models: [writer, model], settings: { RESEARCH_CORPUS: folder } })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await upstream[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })

  it.each([
    ['of 10 MB', 160],
    ['without an end', Number.POSITIVE_INFINITY],
  ])('returns quotes of the sources instead: %s', async (_, pieces) => {
    upstream.script((call, answer) => flood(call, answer, pieces))
    const more = { model: 'deep-research-flooded', max_duration_seconds: 6 }
    const response = await stack.post(PATH, ask(QUESTION, more))
    expect(response.status).toBe(200)
    const { choices } = (await response.json()) as Completion
    expect(choices[0]?.message.content).toContain('fish and frogs')
    expect(choices[0]?.message.annotations.length).toBeGreaterThan(0)
    // All connections to the upstream must be closed, so that no process continues to read the response.
    await until(() => upstream.connections === 0, { withinMs: 20_000 })
  })

  async function flood({ body, closed }: SeenCall, answer: Answer, pieces: number): Promise<void> {
    let isClosed = false
    void closed.then(() => (isClosed = true))
    const piece = 'herons '.repeat(9_362)
    const isStream = body.stream === true
    answer.open(isStream ? undefined : 'application/json')
    const head = { id: 'c-1', created: 1_790_000_000, model: 'm', object: 'chat.completion.chunk' }
    if (!isStream)
      await answer.bytes('{"id":"c-1","object":"chat.completion","choices":[{"index":0,"message":{"content":"')
    const delta = { ...head, choices: [{ index: 0, delta: { content: piece }, finish_reason: null }] }
    const frame = isStream ? `data: ${JSON.stringify(delta)}\n\n` : piece
    for (let at = 0; at < pieces && !isClosed; at++) await Promise.race([answer.bytes(frame), closed])
    if (!isStream) await answer.bytes('"},"finish_reason":"stop"}]}')
    answer.end()
  }
})

describe('a research whose caller disconnects', () => {
  let stack: Stack
  let folder: string
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sluice-many-'))
    // The first question waits until all files are indexed. With 3,000 files, this takes much longer than the client waits before it
    // disconnects.
    const text = 'A sentence about herons that nest in trees. '.repeat(100)
    for (let at = 0; at < 3_000; at++) await writeFile(join(folder, `${at}.txt`), `${at} ${text}`)
    stack = await startStack({ models: [ECHO_MODEL, MODEL], settings: { RESEARCH_CORPUS: folder } })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })

  const statusOf = async (id: string) => ((await (await stack.get(`/v1/jobs/${id}`)).json()) as WireJob).status

  it('is cancelled, unless it runs in the background', async () => {
    const accepted = await stack.post(PATH, ask(QUESTION, { background: true }))
    const { id: kept } = (await accepted.json()) as WireJob
    const leave = new AbortController()
    const response = await stack.post(PATH, ask(QUESTION, { stream: true }), { signal: leave.signal })
    const left = response.headers.get('x-job-id') ?? ''
    leave.abort()
    await until(async () => (await statusOf(left)) === 'cancelled')
    expect(await statusOf(kept)).not.toBe('cancelled')
  })
})
