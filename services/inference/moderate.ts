import { type ModerateEvent, type ModerateRequest, type ModerationInput, WORD_LIST } from '#schemas/moderations.ts'
import { EngineRegistry } from '#shared/engines/engine-registry.ts'
import type { ModerationEngine } from '#shared/engines/moderation.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import type { EngineOpeners } from '#shared/ports/engines.ts'
import type { Ports } from '#shared/ports.ts'
import { requirePublic } from './remote-urls.ts'

/** Maximum results per event: about 80 KB of JSON. */
const PIECE_RESULTS = 64

export class Moderators {
  readonly #models: Ports['models']['served']
  readonly #engines: EngineRegistry<ModerationEngine>
  readonly #wordList: ModerationEngine

  constructor(models: Ports['models']['served'], openers: EngineOpeners) {
    this.#models = models
    this.#engines = new EngineRegistry(models, (model) => openers.openModerationEngine(model))
    this.#wordList = openers.openWordList()
  }

  /** Yields the results in the order of the inputs. @throws ServiceError, or the signal's reason */
  async *run({ model, inputs }: ModerateRequest, { signal }: AttemptContext): AsyncGenerator<ModerateEvent> {
    const isWordList = model === WORD_LIST && !this.#models.find(model)
    if (!isWordList) await requirePublic(imagesOf(inputs), 'input', signal)
    const engine = isWordList ? this.#wordList : this.#engines.get(model)
    const results = await engine.moderate(inputs, { signal })
    for (let first = 0; first < results.length; first += PIECE_RESULTS) {
      yield { type: 'moderated', first, results: results.slice(first, first + PIECE_RESULTS) }
    }
  }

  /** Closes the engines of models that were removed or changed. @param untilOver Resolves when all work that uses them has ended */
  retire(untilOver: Promise<void>): Promise<void> {
    return this.#engines.retire(untilOver)
  }

  async close(): Promise<void> {
    await this.#engines.close()
    await this.#wordList.close()
  }
}

function* imagesOf(inputs: readonly ModerationInput[]): Generator<string> {
  for (const input of inputs) {
    for (const part of typeof input === 'string' ? [] : input) if (part.type === 'image_url') yield part.image_url.url
  }
}
