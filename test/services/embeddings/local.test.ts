import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { findEnvironment, MODELS_DIR } from '../../support/speech/running.ts'
import { type Stack, startStack } from '../../support/stack.ts'

const MODEL = 'all-minilm-l6-v2'
const environment = await findEnvironment()

interface List {
  data: { index: number; embedding: number[] }[]
  usage: { prompt_tokens: number; total_tokens: number }
}

interface Research {
  result: { choices: { message: { content: string } }[]; usage: { prompt_tokens: number } }
}

describe.skipIf(!environment)('embeddings of the local model', () => {
  let stack: Stack
  let dataDir: string
  beforeAll(async () => {
    dataDir = await mkdtemp(join(tmpdir(), 'sluice-local-'))
    // All test runs on this machine share the downloaded model, so the data directory has a link to it.
    await symlink(MODELS_DIR, join(dataDir, 'models'))
    const engine = { type: 'local', model: MODEL }
    const model = { id: MODEL, pool: 'embeddings', engine, embeddings: { dimensions: 384 } }
    const research = { id: 'deep-research', pool: 'research', engine: { type: 'research', embeddings: MODEL } }
    const corpus = join(dataDir, 'corpus')
    await mkdir(corpus)
    await writeFile(join(corpus, 'refunds.md'), '# Refunds\n\nMoney goes back to the buyer within five days.\n')
    await writeFile(join(corpus, 'whales.md'), '# Whales\n\nNo buyer has the money for a whale of five days.\n')
    stack = await startStack({ models: [model, research], settings: { DATA_DIR: dataDir, RESEARCH_CORPUS: corpus } })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await rm(dataDir, { recursive: true })
  })

  const post = (body: object) => stack.post('/v1/embeddings', { model: MODEL, ...body })
  async function embed(input: unknown): Promise<List> {
    const response = await post({ input })
    expect(response.status).toBe(200)
    return (await response.json()) as List
  }

  it('rank a text with the same meaning above an unrelated text', async () => {
    const texts = ['How do I get my money back?', 'Refunds are issued within five days.', 'Blue whales are large.']
    const [asked = [], near = [], far = []] = (await embed(texts)).data.map(({ embedding }) => embedding)
    expect(asked).toHaveLength(384)
    expect(dot(asked, near)).toBeGreaterThan(dot(asked, far) + 0.2)
  })

  it('are equal, with equal token counts, whether or not callers share an upstream call', async () => {
    const texts = Array.from({ length: 30 }, (_, i) => `${'word '.repeat(i * 3)}number ${i}`)
    const alone: List[] = []
    for (const text of texts) alone.push(await embed(text))
    const together = await Promise.all([...texts.map(embed), embed(texts)])
    const all = together.pop() as List
    expect(together).toEqual(alone)
    expect(all.data.map(({ embedding }) => embedding)).toEqual(alone.map(({ data }) => data[0]?.embedding))
    expect(all.usage.prompt_tokens).toBe(alone.reduce((sum, { usage }) => sum + usage.prompt_tokens, 0))
  })

  it('rank the passages of a research job, and are computed in a child job', async () => {
    const messages = [{ role: 'user', content: 'Within how many days does the money go back to the buyer?' }]
    const posted = await stack.post('/v1/deep-research', { model: 'deep-research', messages, background: true })
    const { id } = (await posted.json()) as { id: string }
    const job = await (await stack.get(`/v1/jobs/${id}?wait=30`)).json()
    expect(job).toMatchObject({ status: 'completed', children: [{ model: MODEL, status: 'completed' }] })
    const { choices, usage } = (job as Research).result
    expect(choices[0]?.message.content).toContain('Money goes back to the buyer within five days. [1]')
    expect(choices[0]?.message.content).not.toContain('by words alone')
    expect(usage.prompt_tokens).toBeGreaterThan(20)
  })

  it('are equal for token ids and for their text', async () => {
    // 15339 and 1917 are the token ids of "hello world" in the encoding cl100k_base.
    expect((await embed([[15339, 1917]])).data).toEqual((await embed('hello world')).data)
  })

  it('are refused for a text of more than 512 tokens, and the error contains the index of the text', async () => {
    const long = 'word '.repeat(511)
    const calls = [
      post({ input: ['fine', 'fine too', long] }),
      ...Array.from({ length: 10 }, (_, i) => post({ input: `${i}` })),
    ]
    const [refused, ...others] = await Promise.all(calls)
    expect(refused?.status).toBe(400)
    expect(await refused?.json()).toMatchObject({
      error: {
        code: 'context_length_exceeded',
        param: 'input',
        message: expect.stringMatching(/^Input 2 has 513 tokens/),
      },
    })
    expect(others.map(({ status }) => status)).toEqual(others.map(() => 200))
  })

  it('are refused with fewer dimensions than the model has', async () => {
    expect((await post({ input: 'x', dimensions: 384 })).status).toBe(200)
    expect(await (await post({ input: 'x', dimensions: 128 })).json()).toMatchObject({ error: { param: 'dimensions' } })
  })
})

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, number, i) => sum + number * (b[i] as number), 0)
}
