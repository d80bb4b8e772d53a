import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, streamText } from 'ai'
import OpenAI from 'openai'
import type { ChatCompletion, ChatCompletionChunk } from 'openai/resources/chat/completions'
import type { Stream } from 'openai/streaming'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { findPythonEnv } from '../support/processes/python.ts'
import { CASES_MS, casesOf, pinsOf, runCases } from '../support/python-cases.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../support/stack.ts'

const MODEL = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
const QUESTION = 'How are webhooks signed, and how often are they tried again?'
const BODY = { model: 'deep-research', messages: [{ role: 'user' as const, content: QUESTION }] }
const SCRIPT = 'research_cases.py'
const CASES = casesOf(SCRIPT)
const PYTHON = await findPythonEnv('sdk-new', pinsOf('new'))

for (const mode of ['embedded', 'Kafka']) {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined
  describe.skipIf(mode === 'Kafka' && !kafka)(`deep research through the SDKs, ${mode}`, () => {
    let stack: Stack
    beforeAll(async () => {
      stack = await startStack({ kafka, models: [ECHO_MODEL, MODEL] })
    })
    afterAll(() => stack[Symbol.asyncDispose]())

    const client = () => new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })

    it('the openai package returns a research report with its citations', async () => {
      const { choices } = await client().post<ChatCompletion>('/deep-research', { body: BODY })
      const { content, annotations } = choices[0]?.message ?? {}
      expect(content).toContain('sign')
      expect(annotations?.[0]?.url_citation).toMatchObject({ url: 'docs/guides/webhooks.md', title: 'Webhooks' })
    })

    it('the openai package streams a research report with its progress', async () => {
      const request = { body: { ...BODY, stream: true }, stream: true }
      const stream = await client().post<Stream<ChatCompletionChunk>>('/deep-research', request)
      const chunks: ChatCompletionChunk[] = []
      for await (const chunk of stream) chunks.push(chunk)
      expect(chunks.some((chunk) => 'research_progress' in chunk)).toBe(true)
      expect(chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')).toContain('sign')
      expect(chunks.findLast(({ choices }) => choices.length > 0)?.choices[0]?.finish_reason).toBe('stop')
    })

    it('the openai package starts a research in the background, and returns the report later', async () => {
      const { id } = await client().post<{ id: string }>('/deep-research', {
        body: { ...BODY, background: true },
      })
      const job = await client().get<{ status: string; result: ChatCompletion }>(`/jobs/${id}?wait=30`)
      expect(job.status).toBe('completed')
      expect(job.result.choices[0]?.message.annotations?.length).toBeGreaterThan(0)
    })

    it('the ai package with openai-compatible returns a research report, with and without streaming', async () => {
      const research: typeof fetch = (url, init) =>
        fetch(String(url).replace('/chat/completions', '/deep-research'), init)
      const options = { name: 'sluice', baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, fetch: research }
      const model = createOpenAICompatible(options)('deep-research')
      expect((await generateText({ model, prompt: QUESTION, maxRetries: 0 })).text).toContain('sign')
      const streamed = streamText({ model, prompt: QUESTION, maxRetries: 0 })
      expect(await streamed.text).toContain('sign')
      expect(await streamed.finishReason).toBe('stop')
    })

    describe.skipIf(!PYTHON)('research through openai for Python', () => {
      let report: Record<string, string | null>
      beforeAll(async () => {
        report = await runCases(PYTHON ?? '', SCRIPT, { key: TEST_KEY, free: stack.url })
      }, CASES_MS)

      it.each(CASES)('passes the case %s', (name) => {
        expect(report[name]).toBe(null)
      })
    })
  })
}
