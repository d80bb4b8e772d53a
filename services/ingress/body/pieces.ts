import type { z } from 'zod'
import type { Wording } from './problem.ts'
import { checkMessages, checkSound } from './validate.ts'
import { wellFormed } from './well-formed.ts'

/** Work that can be interrupted: it yields between its pieces, each a few milliseconds long. */
export type Pieces<T> = Generator<void, T>

/** Messages checked or decoded in one piece. */
export const PIECE_MESSAGES = 1_000
/** Levels around a message: the body and its list. */
const MESSAGE_DEPTH = 2

/**
 * Checks a body as `parseBody` does, a long list of messages in pieces. Of a long list the first messages and all the rest
 * of the body come first, then the other messages in their order.
 *
 * @throws ServiceError a 400 with `param` set to the path of the first problem
 */
export function* parseInPieces<T extends z.ZodObject<{ messages: z.ZodArray }>>(
  schema: T,
  body: unknown,
  wording: Wording,
): Pieces<z.output<T>> {
  const sound = yield* soundInPieces(body)
  yield
  if (!hasLongList(sound)) return checkSound(schema, sound, wording)
  const { messages } = sound
  const head = checkSound(schema, { ...sound, messages: messages.slice(0, PIECE_MESSAGES) }, wording)
  const checked: unknown[] = [...(head.messages as unknown[])]
  for (let at = PIECE_MESSAGES; at < messages.length; at += PIECE_MESSAGES) {
    yield
    for (const message of checkMessages(schema.shape.messages, sound, [at, at + PIECE_MESSAGES], wording))
      checked.push(message)
  }
  return { ...head, messages: checked }
}

/** {@link wellFormed}, a long list of messages in pieces. */
function* soundInPieces(body: unknown): Pieces<unknown> {
  if (!hasLongList(body)) return wellFormed(body, 0)
  const { messages, ...rest } = body
  const sound: unknown[] = []
  for (const [index, message] of messages.entries()) {
    if (index % PIECE_MESSAGES === 0) yield
    sound.push(wellFormed(message, MESSAGE_DEPTH))
  }
  return { ...(wellFormed(rest, 0) as object), messages: sound }
}

/** Longest list that any schema takes: it refuses a longer one before it looks inside. */
const MESSAGES_MAX = 100_000

function hasLongList(body: unknown): body is { messages: unknown[] } {
  const messages = (body as { messages?: unknown } | null)?.messages
  return Array.isArray(messages) && messages.length > PIECE_MESSAGES && messages.length <= MESSAGES_MAX
}
