/**
 * A burst of jobs and calls for few slots: each accepted job runs exactly once.
 *
 * `BURST_JOBS=500 BURST_CALLS=200` is the burst that a fresh install must handle. The default is smaller, and still larger than the queue of
 * the default chat engine.
 */
import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { prepareWeights } from '#shared/prepare/weights.ts'
import { startUpstream } from './support/processes/upstream.ts'
import { type Stack, startStack, until } from './support/stack.ts'

const JOBS = Number(process.env.BURST_JOBS ?? 60)
const CALLS = Number(process.env.BURST_CALLS ?? 30)
/** Timeout of a burst. The value is high, because the machine may be busy. */
const WITHIN_MS = 1_200_000
const options = { timeout: WITHIN_MS + 60_000 }

const WEIGHTS = 'smollm2-135m-instruct'
const preparedDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')
// If the weights of the local model are missing, then the test of this model is skipped. Then
// test/shared/engines/chat-engine.test.ts prints the reason, or fails in CI.
const hasWeights = await prepareWeights(WEIGHTS, preparedDir).then(
  () => true,
  () => false,
)

/** The default chat model, with the settings that it has in models.yaml. */
const LLAMA = {
  id: WEIGHTS,
  engine: { type: 'llama', file: join(preparedDir, `${WEIGHTS}.gguf`), context_tokens: 2_048, parallel: 2 },
}

function chat(model: string, text: string) {
  // Answers are limited to two tokens. The burst is about the number of calls, not their length.
  return { model, max_tokens: 2, messages: [{ role: 'user', content: text }] }
}

/** Submits durable jobs and returns their ids. */
async function submit(stack: Stack, model: string, count: number, priority: 'normal' | 'low'): Promise<string[]> {
  const submitOne = async (_: unknown, i: number) => {
    const body = chat(model, `Count to ${i}.`)
    const job = { endpoint: '/v1/chat/completions', body, priority, expires_after_seconds: 43_200 }
    const response = await stack.post('/v1/jobs', job)
    expect(response.status).toBe(202)
    return ((await response.json()) as { id: string }).id
  }
  return await Promise.all(Array.from({ length: count }, submitOne))
}

/** Waits until all jobs have ended. Returns the number of jobs for each end state and attempt number. */
async function endsOf(stack: Stack, ids: readonly string[]): Promise<Record<string, number>> {
  const ends: Record<string, number> = {}
  for (const id of ids) {
    const job = await until(
      async () => {
        const found = (await (await stack.get(`/v1/jobs/${id}?wait=30`)).json()) as Ended
        return ['queued', 'in_progress'].includes(found.status) ? undefined : found
      },
      { withinMs: WITHIN_MS },
    )
    const end = `${job.status}, attempt ${job.attempt}${job.error ? `: ${job.error.message}` : ''}`
    ends[end] = (ends[end] ?? 0) + 1
  }
  return ends
}

interface Ended {
  readonly status: string
  readonly attempt: number
  readonly error: { readonly message: string } | null
}

describe('a burst of more calls than slots', () => {
  it.skipIf(!hasWeights)('needs one attempt per job of a local model', options, async () => {
    await using stack = await startStack({ models: [LLAMA] })
    const submitting = submit(stack, WEIGHTS, JOBS, 'low')
    const call = async (_: unknown, i: number) =>
      (await stack.post('/v1/chat/completions', chat(WEIGHTS, `Say ${i}.`))).status
    const statuses = await Promise.all(Array.from({ length: CALLS }, call))
    expect(statuses).toEqual(Array(CALLS).fill(200))
    expect(await endsOf(stack, await submitting)).toEqual({ 'completed, attempt 1': JOBS })
  })

  it('makes exactly one upstream call per job', options, async () => {
    let [running, most] = [0, 0]
    await using upstream = await startUpstream(async (_call, answer) => {
      most = Math.max(most, ++running)
      await new Promise((resolve) => setTimeout(resolve, 30))
      running--
      const message = { role: 'assistant', content: 'Hello.' }
      const choices = [{ index: 0, message, finish_reason: 'stop' }]
      answer.json({ id: 'c1', object: 'chat.completion', created: 1, model: 'm1', choices })
    })
    // The last job waits in the queue for much longer than `connect_ms`. The time in the queue must not count as connect time.
    const engine = { type: 'openai', base_url: `${upstream.url}/v1`, concurrency: 8, timeouts: { connect_ms: 100 } }
    await using stack = await startStack({ models: [{ id: 'm1', engine }] })
    const ids = await submit(stack, 'm1', 200, 'normal')
    expect(await endsOf(stack, ids)).toEqual({ 'completed, attempt 1': 200 })
    expect(upstream.calls.length).toBe(200)
    expect(most).toBeLessThanOrEqual(8)
  })
})
