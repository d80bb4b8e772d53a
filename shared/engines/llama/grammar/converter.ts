import type { Schema } from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { replyOf, SerialThread, startThread } from '#shared/process/serial-thread.ts'
import type { GrammarOptions } from './grammar.ts'
import type { GrammarReply, GrammarTask } from './thread.ts'

const CONVERT_MS = 10_000
const HEAP_MB = 256
/**
 * Maximum JSON values and characters of a schema that is copied to the converter's thread. Larger schemas would exceed the limits of grammar.ts
 * anyway.
 */
const VALUES_MAX = 100_000
const CHARS_MAX = 1024 * 1024

/**
 * Converts JSON schemas into grammars (`grammar.ts`) in a thread, one after the other. A conversion takes up to 0.5 s, which would block the event
 * loop. The thread starts with the first schema. Must be closed.
 */
export class GrammarConverter {
  readonly #thread = new SerialThread(async () => startThread(new URL('./thread.ts', import.meta.url), HEAP_MB))

  /**
   * Runs `writeSchemaGrammar` in the thread.
   *
   * @throws ServiceError `invalid_value`, or `overloaded` after `close`. The signal's reason, if the signal aborts
   */
  async convert(schema: Schema, param: string, options: GrammarOptions, signal: AbortSignal): Promise<string> {
    if (!isWithin(schema, { values: VALUES_MAX, chars: CHARS_MAX })) throw refused('is too large', param)
    const task: GrammarTask = { schema, param, options }
    const reply = await this.#thread.run(
      (worker) =>
        replyOf<GrammarReply>(worker, CONVERT_MS, task).catch((cause) => {
          throw refused('takes too much time or memory', param, cause)
        }),
      signal,
    )
    if ('grammar' in reply) return reply.grammar
    throw new ServiceError('invalid_value', reply.refusal.message, { param: reply.refusal.param ?? param })
  }

  async close(): Promise<void> {
    await this.#thread.close()
  }
}

function isWithin(value: unknown, left: { values: number; chars: number }): boolean {
  if (typeof value === 'string') left.chars -= value.length
  if (--left.values < 0 || left.chars < 0) return false
  if (typeof value !== 'object' || value === null) return true
  for (const key in value) {
    left.chars -= key.length
    if (!isWithin((value as Record<string, unknown>)[key], left)) return false
  }
  return true
}

function refused(problem: string, param: string, cause?: unknown): ServiceError {
  const message = `This model cannot follow the JSON schema: it ${problem}.`
  return new ServiceError('invalid_value', message, { cause, param })
}
