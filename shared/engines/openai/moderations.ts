import { z } from 'zod'
import type { ModelConfig } from '#schemas/models.ts'
import type { ModerationResult } from '#schemas/moderations.ts'
import { eachCategory, type ModerationEngine } from '#shared/engines/moderation.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { ModelShare } from '#shared/engines/upstream/share.ts'
import { resultsIn, WholeCalls } from './whole.ts'

/** What is read of an answer. Servers of older models leave out categories, and all that is about images. */
const Answer = z.object({
  results: z.array(
    z.object({
      flagged: z.boolean(),
      categories: z.record(z.string(), z.boolean().nullable()),
      category_scores: z.record(z.string(), z.number().nullable()),
      category_applied_input_types: z.record(z.string(), z.array(z.enum(['text', 'image']))).nullish(),
    }),
  ),
})
type Judged = z.infer<typeof Answer>['results'][number]

/**
 * A moderation engine on any server that speaks POST /moderations: OpenAI, LocalAI, guard models behind such a door.
 *
 * @param model A model whose engine is of type `openai`.
 * @param env Where the key named by `api_key_env` is found. Where it names none none is sent.
 * @param share With which other workers its servers are shared, where the catalogue bounds them; default: none
 */
export function openOpenAiModeration(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelShare,
): ModerationEngine {
  const calls = new WholeCalls(model, env, share)
  return {
    async moderate(inputs, { signal }) {
      // An input of several parts is one of its own in the API as well.
      const [first] = inputs
      const asked = { model: calls.name, input: typeof first === 'object' ? first : inputs }
      return await calls.call('/moderations', asked, signal, (body) => resultsOf(model.id, body, inputs.length))
    },
    close: () => calls.close(),
  }
}

/** @throws ServiceError `upstream_error` when it is not one result for each input */
function resultsOf(model: string, body: unknown, count: number): ModerationResult[] {
  if (resultsIn(body) !== count) throw answerError(model, `did not give one result for each of ${count} inputs`)
  const { data: answer } = Answer.safeParse(body)
  if (!answer) throw answerError(model, 'sent an answer of an unknown shape')
  return answer.results.map(resultOf)
}

/** Every category, with null for one that the server says nothing about. */
function resultOf({ flagged, categories, category_scores, category_applied_input_types }: Judged): ModerationResult {
  return {
    flagged,
    categories: eachCategory((category) => categories[category] ?? null),
    category_scores: eachCategory((category) => category_scores[category] ?? 0),
    category_applied_input_types: eachCategory((category) => category_applied_input_types?.[category] ?? []),
  }
}
