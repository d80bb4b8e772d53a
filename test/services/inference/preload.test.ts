import { mkdtemp, rm, symlink } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { prepareWeights } from '#shared/prepare/weights.ts'
import { startStack, until } from '../../support/stack.ts'

const WEIGHTS = 'smollm2-135m-instruct'
const preparedDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')
// If the model weights are missing, these tests are skipped. Then test/shared/engines/chat-engine.test.ts prints the reason, or
// fails in CI.
const hasWeights = await prepareWeights(WEIGHTS, preparedDir).then(
  () => true,
  () => false,
)

it.skipIf(!hasWeights)(
  'an inference worker loads a model with preload: true before the first call of the model',
  async () => {
    const dataDir = await mkdtemp(join(tmpdir(), 'sluice-preload-'))
    onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
    await symlink(preparedDir, join(dataDir, 'models'))
    const engine = { type: 'llama', weights: WEIGHTS, context_tokens: 512, parallel: 1 }
    const models = [
      { id: 'early', engine: { ...engine, preload: true } },
      { id: 'late', engine },
    ]
    await using stack = await startStack({ models, dataDir })
    const what = 'early in memory'
    const ready = async () => (await (await stack.get('/readyz')).json()) as object
    const metrics = async () => (await (await stack.get('/metrics')).text()).split('\n')
    await until(async () => (await metrics()).includes(`sluice_prepared_ratio{resource="${what}"} 1`), {
      withinMs: 60_000,
    })
    expect(await ready()).toEqual({ status: 'ready' })
    expect((await metrics()).filter((line) => line.includes('late in memory'))).toEqual([])
    const answer = await stack.post('/v1/chat/completions', {
      model: 'early',
      max_tokens: 2,
      messages: [{ role: 'user', content: 'Hi' }],
    })
    expect(await answer.json()).toMatchObject({ choices: [{ message: { content: expect.stringMatching(/./) } }] })
  },
  120_000,
)

it.skipIf(!hasWeights)('an inference worker reports models in preparation until they are ready', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-preload-'))
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }))
  await symlink(preparedDir, join(dataDir, 'models'))
  const models = [{ id: 'early', engine: { type: 'llama', file: 'no-such.gguf', preload: true } }]
  await using stack = await startStack({ models, dataDir })
  // A model that cannot be loaded stays in the list `preparing`. Calls to the model return the reason.
  await until(async () => {
    const { preparing } = (await (await stack.get('/readyz')).json()) as { preparing?: string[] }
    return preparing?.[0] === 'early in memory (0 %)'
  })
})
