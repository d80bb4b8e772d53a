import { ModerationCategory, type ModerationInput, type ModerationResult } from '#schemas/moderations.ts'

/**
 * The moderation engine port: an engine classifies inputs and outputs.
 *
 * Contract of every engine:
 *
 * 1. One result per input, in the order of the inputs, with every category; never fewer.
 * 2. No input blocks the event loop: long work yields.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help.
 */
export interface ModerationEngine {
  /** @throws ServiceError, or the signal's reason */
  moderate(inputs: readonly ModerationInput[], options: { signal: AbortSignal }): Promise<ModerationResult[]>
  close(): Promise<void>
}

/** A record with one entry per category. */
export function eachCategory<T>(of: (category: ModerationCategory) => T): Record<ModerationCategory, T> {
  const entries = ModerationCategory.options.map((category): [ModerationCategory, T] => [category, of(category)])
  return Object.fromEntries(entries) as Record<ModerationCategory, T>
}
