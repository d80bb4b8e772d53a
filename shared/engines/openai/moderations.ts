import { z } from 'zod'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { ModerationInput, ModerationResult } from '#schemas/moderations.ts'
import { eachCategory, type ModerationEngine } from '#shared/engines/moderation.ts'
import { type Decoder, openReader } from '#shared/engines/upstream/answer.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelShare } from '#shared/engines/upstream/share.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'

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
  const { engine } = model
  if (engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  const key = keyOf(model, env)
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
  return new OpenAiModeration(model.id, engine, headers, {
    missingKey: missingKeyOf(model, env),
    ...(engine.concurrency !== undefined && { share }),
  })
}

class OpenAiModeration implements ModerationEngine {
  readonly #id: string
  readonly #name: string
  readonly #upstream: Upstream

  constructor(id: string, config: UpstreamConfig, headers: Record<string, string>, options: UpstreamOptions) {
    this.#id = id
    this.#name = config.model ?? id
    this.#upstream = new Upstream({ id }, config, headers, options)
  }

  async moderate(inputs: readonly ModerationInput[], { signal }: { signal: AbortSignal }): Promise<ModerationResult[]> {
    // An input of several parts is one of its own in the API as well.
    const [first] = inputs
    const input = typeof first === 'object' ? first : inputs
    const body = JSON.stringify({ model: this.#name, input })
    const exchange = await this.#upstream.call({ path: '/moderations', headers: {}, body, isStream: false, signal })
    try {
      const found: ModerationResult[][] = []
      const reader = openReader(exchange, new ModerationsDecoder(this.#id, inputs.length))
      for (let isOver = false; !isOver; ) {
        await exchange.waitForBytes()
        isOver = reader.read(exchange.take(), found)
      }
      exchange.release(true)
      return found[0] as ModerationResult[]
    } finally {
      exchange.release(false)
    }
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}

/** Answers are whole. */
class ModerationsDecoder implements Decoder<ModerationResult[]> {
  readonly isDone = false
  readonly #model: string
  readonly #count: number

  constructor(model: string, count: number) {
    this.#model = model
    this.#count = count
  }

  whole(body: Record<string, unknown>, out: ModerationResult[][]): void {
    const { data: answer } = Answer.safeParse(body)
    if (!answer) throw answerError(this.#model, 'sent an answer of an unknown shape')
    if (answer.results.length !== this.#count) {
      throw answerError(this.#model, `did not give one result for each of ${this.#count} inputs`)
    }
    out.push(answer.results.map(resultOf))
  }

  frame(): void {
    throw answerError(this.#model, 'answered with a stream')
  }

  isEnd(): boolean {
    return false
  }

  end(): void {}
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
