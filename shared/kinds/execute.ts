import { type CodeEvent, CodeRequest } from '#schemas/code.ts'
import { codeAnswer } from '#shared/protocols/code/code.ts'
import { OUTPUT_BYTES_MAX, PLOTS_BYTES_MAX } from '#shared/sandbox/limits.ts'
import type { Kind } from './kind.ts'

/** Maximum characters of merged text. Even if JSON escapes make the text six times as long, it fits into a record. */
export const TEXT_PIECE_CHARS = 64 * 1024
const MARGIN_BYTES = 2 * 1024 * 1024

export const execute: Kind<CodeRequest, CodeEvent> = {
  name: 'execute',
  pool: 'code',
  request: CodeRequest,
  // The text of both output streams, plus the plots as base64.
  answerBytesMax: 2 * OUTPUT_BYTES_MAX + Math.ceil(PLOTS_BYTES_MAX / 3) * 4 + MARGIN_BYTES,
  merge: mergeCodeEvents,
  // After such an event, a second run would send output twice. The end event is the last one, so no run follows it.
  isOutput: ({ type }) => type !== 'end',
  answer: () => codeAnswer,
}

/** Merges short texts of one output stream, so that a program that prints small pieces quickly produces few records. */
export function mergeCodeEvents(a: CodeEvent, b: CodeEvent): CodeEvent | undefined {
  if (a.type !== 'output' || b.type !== 'output' || a.stream !== b.stream) return undefined
  if (a.piece.length + b.piece.length > TEXT_PIECE_CHARS) return undefined
  return { ...a, piece: a.piece + b.piece }
}
