import { type CodeEvent, CodeRequest } from '#schemas/code.ts'
import { codeAnswer } from '#shared/protocols/code/code.ts'
import { OUTPUT_BYTES_MAX, PLOTS_BYTES_MAX } from '#shared/sandbox/limits.ts'
import type { Kind } from './kind.ts'

/** Characters of text at which two pieces stay apart; escaped six times as long, one still fits into a record. */
export const TEXT_PIECE_CHARS = 64 * 1024
/** Room for what a run says beside its output: messages of the service, the frames of its pieces. */
const MARGIN_BYTES = 2 * 1024 * 1024

/** Python in a sandbox. */
export const execute: Kind<CodeRequest, CodeEvent> = {
  name: 'execute',
  pool: 'code',
  request: CodeRequest,
  // Both streams, and the plots as base64.
  answerBytesMax: 2 * OUTPUT_BYTES_MAX + Math.ceil(PLOTS_BYTES_MAX / 3) * 4 + MARGIN_BYTES,
  merge: mergeCodeEvents,
  // A caller would see all of it twice but the end.
  isOutput: ({ type }) => type !== 'end',
  answer: () => codeAnswer,
}

/** Joins text of one stream while it is short: a program that prints fast makes few records. */
export function mergeCodeEvents(a: CodeEvent, b: CodeEvent): CodeEvent | undefined {
  if (a.type !== 'output' || b.type !== 'output' || a.stream !== b.stream) return undefined
  if (a.piece.length + b.piece.length > TEXT_PIECE_CHARS) return undefined
  return { ...a, piece: a.piece + b.piece }
}
