import { z } from 'zod'
import type { ModelConfig } from '#schemas/models.ts'
import type { ModerationResult } from '#schemas/moderations.ts'
import { eachCategory, type ModerationEngine } from '#shared/engines/moderation.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { resultsIn, WholeCalls } from './whole.ts'

/** The fields of an answer that are read. Servers of older models omit categories and everything about images. */
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
type ModerationAnswer = z.infer<typeof Answer>['results'][number]

/**
 * Opens a moderation engine for a server with POST /moderations: OpenAI, LocalAI, guard models behind this API.
 *
 * @param model A model whose engine has type `openai`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Shares the servers' limits with other workers if the catalogue sets one; default: no sharing.
 */
export function openOpenAiModeration(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): ModerationEngine {
  const calls = new WholeCalls(model, env, share)
  return {
    async moderate(inputs, { signal }) {
      // In the API, too, an input of several parts is the only input of its request.
      const [first] = inputs
      const asked = { model: calls.name, input: typeof first === 'object' ? first : inputs }
      return await calls.call('/moderations', asked, signal, (body) => resultsOf(model.id, body, inputs.length))
    },
    close: () => calls.close(),
  }
}

/** @throws ServiceError `upstream_error` unless there is one result per input */
function resultsOf(model: string, body: unknown, count: number): ModerationResult[] {
  if (resultsIn(body) !== count) throw answerError(model, `did not return one result for each of ${count} inputs`)
  const { data: answer } = Answer.safeParse(body)
  if (!answer) throw answerError(model, 'sent an answer of an unknown shape')
  return answer.results.map(resultOf)
}

/** Every category, with null if the server does not report it. */
function resultOf({
  flagged,
  categories,
  category_scores,
  category_applied_input_types,
}: ModerationAnswer): ModerationResult {
  return {
    flagged,
    categories: eachCategory((category) => categories[category] ?? null),
    category_scores: eachCategory((category) => category_scores[category] ?? 0),
    category_applied_input_types: eachCategory((category) => category_applied_input_types?.[category] ?? []),
  }
}
