import type { ModelConfig } from '#schemas/models.ts'
import { Batcher } from '#shared/engines/batching/batcher.ts'
import { CALLS_MAX } from '#shared/engines/embedding.ts'
import { Served } from '#shared/engines/served.ts'
import type { Ports } from '#shared/ports.ts'

/** A model and the batcher before its engine; closing it ends all its calls. */
interface BatchedModel {
  readonly model: ModelConfig
  readonly batcher: Batcher
  close(): Promise<void>
}

/** The models of one worker, each with a batcher. */
export class Batchers extends Served<BatchedModel> {
  constructor(ports: Pick<Ports, 'models' | 'openEmbeddingEngine'>) {
    super(ports.models, (model) => {
      const batcher = new Batcher(ports.openEmbeddingEngine(model), optionsOf(model))
      return { model, batcher, close: () => batcher.close() }
    })
  }
}

function optionsOf({ embeddings, engine }: ModelConfig) {
  return {
    inputsMax: embeddings.batch_inputs_max,
    tokensMax: embeddings.batch_tokens_max,
    waitMs: embeddings.batch_wait_ms,
    callsMax: ('concurrency' in engine ? engine.concurrency : undefined) ?? CALLS_MAX,
  }
}
