import type { CodeEvent, CodeFile, CodeRequest } from '#schemas/kinds/code.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { mergeCodeEvents, TEXT_PIECE_CHARS } from '#shared/kinds/execute/execute.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { EventBuffer, isHighSurrogate } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { ChosenSandbox } from '#shared/sandbox/choose.ts'
import type { Sandbox, SandboxEnd, SandboxEvent, SandboxFile } from '#shared/sandbox/sandbox.ts'
import { tracing } from '#shared/telemetry/tracing.ts'

/**
 * Maximum bytes of a plot in one event, which become 256 KiB of base64. The number is a multiple of three, so that each
 * piece is base64 without padding and the pieces can be concatenated.
 */
const PLOT_PIECE_BYTES = 192 * 1024

export type RunEnd = 'ok' | 'error' | 'violations' | 'timeout' | 'killed' | 'cancelled' | 'failed'

/** Facts of a finished run for metrics and logs. The code and its output are never logged. */
export interface RunFacts {
  readonly sandbox: Sandbox['name']
  readonly end: RunEnd
  readonly seconds: number
}

export interface Workbench {
  readonly sandbox: ChosenSandbox
  readonly blobs: Blobs
  onRun(request: CodeRequest, context: AttemptContext, facts: RunFacts): void
}

/**
 * Runs code in the sandbox. Yields its output in order while the code runs, then its end.
 *
 * If the consumer leaves early, then the run is killed. The generator returns when the processes of the run have ended.
 *
 * @throws ServiceError `sandbox_lost`, `sandbox_unavailable`, or `not_found` for a deleted file
 * @throws The reason of the signal, if the signal aborts
 */
export async function* runCode(
  bench: Workbench,
  request: CodeRequest,
  context: AttemptContext,
): AsyncGenerator<CodeEvent> {
  const files = await readFiles(bench.blobs, request.files ?? [])
  const sandbox = await bench.sandbox.get(context.signal)
  const run = new CodeRun(bench, sandbox, request, files, context)
  try {
    yield* run.events()
  } finally {
    await run.close()
  }
}

/** One run: buffers the sandbox's events until the consumer takes them. */
class CodeRun {
  readonly #bench: Workbench
  readonly #sandbox: Sandbox
  readonly #request: CodeRequest
  readonly #files: readonly SandboxFile[]
  readonly #context: AttemptContext
  #startedAt = performance.now()
  /**
   * Duration of the run in seconds. Measured when the run ends, so that a slow reader of the output does not extend it.
   */
  #seconds = 0
  /**
   * Output that waits for the consumer. The sandbox bounds it to 2 MiB of text and 20 MiB of plots
   * (shared/sandbox/protocol/limits.ts).
   */
  readonly #pieces = new EventBuffer(mergeCodeEvents)
  #isLineOpen = false
  #end: SandboxEnd | undefined
  #error: unknown
  #wake = () => {}
  readonly #left = new AbortController()
  readonly #over: Promise<void>

  constructor(
    bench: Workbench,
    sandbox: Sandbox,
    request: CodeRequest,
    files: readonly SandboxFile[],
    context: AttemptContext,
  ) {
    this.#bench = bench
    this.#sandbox = sandbox
    this.#request = request
    this.#files = files
    this.#context = context
    context.signal.throwIfAborted()
    context.signal.addEventListener('abort', this.#leave, { once: true })
    this.#over = this.#run().finally(() => this.#wake())
  }

  async *events(): AsyncGenerator<CodeEvent> {
    for (;;) {
      yield* this.#pieces.takeAll()
      if (!this.#pieces.isEmpty) continue
      if (this.#end || this.#error !== undefined) break
      await new Promise<void>((resolve) => (this.#wake = resolve))
    }
    if (!this.#end) throw this.#error
    yield* endOf(this.#end, this.#request.timeout_seconds, this.#seconds, this.#isLineOpen)
  }

  async close(): Promise<void> {
    this.#context.signal.removeEventListener('abort', this.#leave)
    this.#left.abort()
    await this.#over
  }

  readonly #leave = () => this.#left.abort(this.#context.signal.reason)

  async #run(): Promise<void> {
    const { code, timeout_seconds } = this.#request
    const { traceparent: parent } = this.#context
    const attributes = { 'sluice.sandbox': this.#sandbox.name }
    const span = tracing.tracer?.start({ name: 'run python', kind: 'internal', parent, attributes })
    const job = { code, timeoutMs: timeout_seconds * 1_000, scan: true, files: this.#files }
    try {
      const onEvent = (event: SandboxEvent) => this.#onEvent(event)
      this.#end = await this.#sandbox.run(job, onEvent, this.#left.signal, () => {
        this.#startedAt = performance.now()
      })
    } catch (error) {
      this.#error = error ?? new ServiceError('sandbox_lost', 'The sandbox stopped before the code finished.')
      // A sandbox that cannot start runs is discarded, so that the next run chooses another sandbox.
      if (ServiceError.from(error).code === 'sandbox_unavailable') this.#bench.sandbox.discard(this.#sandbox)
    }
    this.#seconds = (performance.now() - this.#startedAt) / 1_000
    const end = this.#endName()
    span?.end({ 'sluice.outcome': end, 'sluice.run_seconds': this.#seconds }, end === 'failed' ? 'sandbox_lost' : null)
    const facts = { sandbox: this.#sandbox.name, end, seconds: this.#seconds }
    this.#bench.onRun(this.#request, this.#context, facts)
  }

  #onEvent(event: SandboxEvent): void {
    if (this.#left.signal.aborted) return
    if (event.type === 'output' && event.stream === 'stderr') this.#isLineOpen = !event.text.endsWith('\n')
    for (const piece of piecesOf(event)) this.#pieces.push(piece)
    this.#wake()
  }

  #endName(): RunEnd {
    if (this.#end?.type === 'exit') return this.#end.exitCode === 0 ? 'ok' : 'error'
    return this.#end?.type ?? (this.#left.signal.aborted ? 'cancelled' : 'failed')
  }
}

/** @throws ServiceError `not_found` for a file that was deleted after the run was submitted */
async function readFiles(blobs: Blobs, files: readonly CodeFile[]): Promise<SandboxFile[]> {
  const read: SandboxFile[] = []
  for (const { id, name } of files) read.push({ name, bytes: await readFile(blobs, id, name) })
  return read
}

async function readFile(blobs: Blobs, id: string, name: string): Promise<Buffer> {
  try {
    return await blobs.get(id)
  } catch (cause) {
    if (ServiceError.from(cause).code !== 'not_found') throw cause
    throw new ServiceError('not_found', `The file ${JSON.stringify(name)} (${id}) was deleted, or has expired.`, {
      cause,
    })
  }
}

function* piecesOf(event: SandboxEvent): Generator<CodeEvent> {
  if (event.type === 'plot') yield* plotPieces(event.png)
  else yield* textPieces(event.stream, event.text)
}

function* textPieces(stream: 'stdout' | 'stderr', text: string): Generator<CodeEvent> {
  for (let start = 0; start < text.length; ) {
    let end = Math.min(text.length, start + TEXT_PIECE_CHARS)
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
 * Yields the last events of a run (docs/guides/code.md, The result). If the service ended the run, then a message on stderr precedes the end event.
 *
 * @param isLineOpen Whether stderr does not end in a line feed.
 */
function* endOf(
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
