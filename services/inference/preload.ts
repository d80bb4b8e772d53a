import type { ChatEngine } from '#shared/engines/chat.ts'
import type { EngineRegistry } from '#shared/engines/engine-registry.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { PrepareProgress } from '#shared/ports.ts'

/**
 * Loads the models with `engine.preload` into memory, one after the other, after the worker's models are on its disk. A call that arrives
 * meanwhile waits for the same load.
 */
export function preloadOf({ served }: Pick<ModelCatalogue, 'served'>, engines: EngineRegistry<ChatEngine>) {
  return async (onProgress: PrepareProgress, signal: AbortSignal): Promise<void> => {
    for (const model of served.models) {
      if (model.engine.type !== 'llama' || !model.engine.preload) continue
      const what = `${model.id} in memory`
      onProgress(what, 0, 'being loaded')
      await engines.of(model).preload?.(signal)
      onProgress(what, 1, 'loaded')
    }
  }
}
