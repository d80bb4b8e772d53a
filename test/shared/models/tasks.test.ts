import { expect, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { ModelCatalogue } from '#shared/models/models.ts'

const upstream = { type: 'openai', base_url: 'http://127.0.0.1:9/v1' }
const guard = { id: 'guard', task: 'moderation', engine: upstream }

it.each([
  [
    { ...guard, pool: 'embeddings' },
    'Wrong pool for this task. Expected: moderation in inference, speech in inference, rerank in embeddings',
  ],
  [{ ...guard, engine: { type: 'echo' } }, 'task requires an engine of type openai'],
  [{ ...guard, fallbacks: ['echo-1'] }, 'task requires an engine of type openai'],
  [{ ...guard, task: 'dance' }, 'Invalid '],
])('a model whose task does not match its pool or engine is refused: %.80j', (model, message) => {
  expect(ModelConfig.safeParse(model).error?.issues[0]?.message).toContain(message)
})

it.each([
  [
    { id: 'a', engine: { type: 'echo' }, fallbacks: ['guard'] },
    'a falls back to guard, which supports only the task moderation',
  ],
  [
    { id: 'r', pool: 'research', engine: { type: 'research', writer: 'guard' } },
    'r has the writer guard, which is not a model that generates text',
  ],
])('a model that refers to a model with an unsuitable task is refused: %.80j', (model, message) => {
  expect(() => new ModelCatalogue([guard, model].map((each) => ModelConfig.parse(each)))).toThrow(message)
})
