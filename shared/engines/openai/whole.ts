import type { ModelConfig } from '#schemas/models.ts'
import type { Decoder } from '#shared/engines/upstream/decoder.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'

/**
 * Maximum bytes of an answer, in addition to texts of the request that it repeats, which may be six times as long in JSON. Parsing a larger
 * answer would block the event loop too long.
 */
const RESULTS_BYTES_MAX = 2 * 1024 * 1024
const REPEATED_LONGER = 6

/** An endpoint whose requests and answers are whole JSON objects. */
export class WholeCalls {
  readonly name: string
  readonly #id: string
  readonly #upstream: Upstream

  /**
   * @param model A model whose engine has type `openai`.
   * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
   * @param share Shares the servers' limits with other workers if the catalogue sets one; default: no sharing.
   */
  constructor(model: ModelConfig, env: Record<string, string | undefined>, share?: ModelPartition) {
    const { id, engine } = model
    if (engine.type !== 'openai') throw new Error(`model '${id}' does not run on an OpenAI-dialect upstream`)
    const key = keyOf(model, env)
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
    this.#id = id
    this.name = engine.model ?? id
    this.#upstream = new Upstream({ id }, engine, headers, {
      missingKey: missingKeyOf(model, env),
      ...(engine.concurrency !== undefined && { share }),
    })
  }

  /**
   * Makes one call.
   *
   * @param read Converts the answer. @throws ServiceError for an unknown shape
   * @throws ServiceError, or the signal's reason
   */
  async call<T>(path: string, asked: object, signal: AbortSignal, read: (body: unknown) => T): Promise<T> {
    const body = JSON.stringify(asked)
    const exchange = await this.#upstream.call({ path, headers: {}, body, isStream: false, signal })
    try {
      const found: T[] = []
      const bounds = { bytes: RESULTS_BYTES_MAX + REPEATED_LONGER * body.length }
      const reader = openReader(exchange, new WholeDecoder(this.#id, read), bounds)
      for (let isOver = false; !isOver; ) {
        await exchange.waitForBytes()
        isOver = await reader.read(exchange.take(), found)
      }
      exchange.release(true)
      return found[0] as T
    } finally {
      exchange.release(false)
    }
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}

/** Number of `results` in an answer, checked before any is parsed, because there may be a million. NaN if there is no list. */
export function resultsIn(body: unknown): number {
  const { results } = body as { results?: unknown }
  return Array.isArray(results) ? results.length : Number.NaN
}

class WholeDecoder<T> implements Decoder<T> {
  readonly isDone = false
  readonly #model: string
  readonly #read: (body: unknown) => T

  constructor(model: string, read: (body: unknown) => T) {
    this.#model = model
    this.#read = read
  }

  whole(body: Record<string, unknown>, out: T[]): undefined {
    out.push(this.#read(body))
  }

  frame(): void {
    throw answerError(this.#model, 'answered with a stream')
  }

  isEnd(): boolean {
    return false
  }

  end(): void {}
}
