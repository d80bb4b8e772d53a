import { afterAll, beforeAll, describe } from 'vitest'
import { type Stack, startStack } from '../stack.ts'
import { type Embedder, embedderModel, startEmbedder } from './embeddings.ts'

/** A service and its embeddings server, which all tests of one file share. */
export interface EmbeddingsService {
  readonly stack: Stack
  readonly embedder: Embedder
}

export const MODEL = 'embed-1'

/**
 * Runs the tests twice: with the embedded broker and, if a Kafka is available, over Kafka.
 *
 * @param address The value of `inject('kafka')`: address of the Kafka, or null.
 */
export function describeEmbeddings(
  title: string,
  address: string | null,
  tests: (service: EmbeddingsService) => void,
): void {
  for (const mode of ['embedded', 'Kafka']) {
    const kafka = mode === 'Kafka' ? (address ?? undefined) : undefined
    describe.skipIf(mode === 'Kafka' && !kafka)(`${title}, ${mode}`, () => {
      const service = {} as { -readonly [name in keyof EmbeddingsService]: EmbeddingsService[name] }
      beforeAll(async () => {
        service.embedder = await startEmbedder()
        const model = embedderModel(service.embedder, { id: MODEL, embeddings: { can_shorten: true } })
        service.stack = await startStack({ kafka, models: [model] })
      })
      afterAll(async () => {
        await service.stack[Symbol.asyncDispose]()
        await service.embedder[Symbol.asyncDispose]()
      })
      tests(service)
    })
  }
}
