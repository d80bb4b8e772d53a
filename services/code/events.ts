import type { CodeEvent } from '#schemas/code.ts'
import { TEXT_PIECE_CHARS } from '#shared/kinds/execute.ts'
import type { SandboxEnd, SandboxEvent } from '#shared/sandbox/sandbox.ts'
import { isHighSurrogate } from '#shared/surrogate-buffer.ts'

/**
 * Maximum bytes of a plot in one piece: 256 KiB of base64. A multiple of three, so that the pieces concatenate to one valid base64 text.
 */
const PLOT_PIECE_BYTES = 192 * 1024

/** Splits an event of a sandbox into pieces that fit into records of the queue. */
export function* piecesOf(event: SandboxEvent): Generator<CodeEvent> {
  if (event.type === 'plot') yield* plotPieces(event.png)
  else yield* textPieces(event.stream, event.text)
}

function* textPieces(stream: 'stdout' | 'stderr', text: string): Generator<CodeEvent> {
  for (let start = 0; start < text.length; ) {
    let end = Math.min(text.length, start + TEXT_PIECE_CHARS)
    // Never split a surrogate pair.
    if (end < text.length && isHighSurrogate(text.charCodeAt(end - 1))) end--
    yield { type: 'output', stream, piece: text.slice(start, end) }
    start = end
  }
}

function* plotPieces(png: Uint8Array): Generator<CodeEvent> {
  const bytes = Buffer.from(png.buffer, png.byteOffset, png.byteLength)
  for (let start = 0; start < bytes.length; start += PLOT_PIECE_BYTES) {
    const end = start + PLOT_PIECE_BYTES
    yield { type: 'plot', piece: bytes.toString('base64', start, end), is_last: end >= bytes.length }
  }
}

/**
 * The last events of a run (docs/guides/code.md, The result). If the service ended the run, then a message on stderr precedes the end event.
 *
 * @param isLineOpen Whether stderr does not end in a line feed.
 */
export function* endOf(
  end: SandboxEnd,
  timeoutSeconds: number,
  executionTime: number,
  isLineOpen: boolean,
): Generator<CodeEvent> {
  const message = messageOf(end, timeoutSeconds)
  if (message) yield { type: 'output', stream: 'stderr', piece: `${isLineOpen ? '\n' : ''}${message}\n` }
  const isOwn = end.type === 'exit'
  yield {
    type: 'end',
    success: isOwn,
    exit_code: isOwn ? end.exitCode : -1,
    execution_time: Math.round(executionTime * 1_000) / 1_000,
    violations: end.type === 'violations' ? [...end.violations] : [],
  }
}

function messageOf(end: SandboxEnd, timeoutSeconds: number): string | undefined {
  switch (end.type) {
    case 'exit':
      return undefined
    case 'violations':
      return 'Security violations were detected: the code was not executed.'
    case 'timeout':
      return `Execution failed: the timeout of ${timeoutSeconds} ${timeoutSeconds === 1 ? 'second' : 'seconds'} was exceeded.`
    case 'killed':
      return `Execution failed: ${end.message}`
  }
}
