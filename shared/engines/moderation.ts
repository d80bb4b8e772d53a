import { ModerationCategory, type ModerationInput, type ModerationResult } from '#schemas/moderations.ts'

/**
 * The moderation engine port: something that judges what people and models write.
 *
 * Promises every engine keeps:
 * - One result for each input, in their order, with every category; never a short answer.
 * - No input holds the event loop: long work is done in turns.
 * - Aborting `signal` stops the work within a second: an upstream's socket is closed.
 * - A failure is thrown as a ServiceError whose code says whether another try can help.
 */
export interface ModerationEngine {
  /** @throws ServiceError, or the signal's reason */
  moderate(inputs: readonly ModerationInput[], options: { signal: AbortSignal }): Promise<ModerationResult[]>
  /** Releases memory and sockets. */
  close(): Promise<void>
}

/** What there is to say of each category. */
export function eachCategory<T>(of: (category: ModerationCategory) => T): Record<ModerationCategory, T> {
  const entries = ModerationCategory.options.map((category): [ModerationCategory, T] => [category, of(category)])
  return Object.fromEntries(entries) as Record<ModerationCategory, T>
}
