import { StringDecoder } from 'node:string_decoder'
import { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'
import { FrameReader } from './protocol/frames.ts'
import {
  FILE_BYTES_MAX,
  MEMORY_BYTES_MAX,
  OPEN_FILES_MAX,
  OUTPUT_BYTES_MAX,
  PLOT_BYTES_MAX,
  PLOTS_BYTES_MAX,
  PLOTS_MAX,
  PROCESSES_MAX,
  SCRATCH_BYTES_MAX,
} from './protocol/limits.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from './sandbox.ts'

/** Marks the start of a job. The supervisor skips all bytes before this mark. */
const MAGIC = Buffer.from('\0SANDBOX', 'latin1')
/** Maximum bytes of the last line of an output, in which the supervisor reports that the output was truncated. */
const LAST_LINE_BYTES_MAX = 128
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])

/** Bytes of a file that are encoded in one step. The number is a multiple of three, so that base64 needs no padding between pieces. */
const ENCODED_BYTES = 3 * 128 * 1024

const LIMITS = {
  output_bytes: OUTPUT_BYTES_MAX,
  plots: PLOTS_MAX,
  plot_bytes: PLOT_BYTES_MAX,
  plots_bytes: PLOTS_BYTES_MAX,
  memory_bytes: MEMORY_BYTES_MAX,
  scratch_bytes: SCRATCH_BYTES_MAX,
  file_bytes: FILE_BYTES_MAX,
  open_files: OPEN_FILES_MAX,
  processes: PROCESSES_MAX,
}

const Versions = z.record(z.string(), z.string())
const End = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('exit'), exit_code: z.int().min(0).max(255) }),
  z.strictObject({ type: z.literal('violations'), violations: z.array(z.string()).min(1).max(50) }),
  z.strictObject({ type: z.literal('timeout') }),
  z.strictObject({ type: z.literal('killed'), message: z.string() }),
])

/** Encodes a job for a supervisor. Must be run by `runYielding`. */
export function* encodeJob({ code, timeoutMs, scan, files }: SandboxJob): Generator<undefined, Buffer> {
  const body = yield* withFiles({ code, scan, timeout_ms: timeoutMs, limits: LIMITS }, files)
  const length = Buffer.alloc(4)
  length.writeUInt32BE(body.length)
  return Buffer.concat([MAGIC, length, body])
}

/**
 * Encodes fields and the files of a run as JSON, with the content of each file in base64 under its name. The sandbox reads this form
 * (python/execution.py). Must be run by `runYielding`, because serializing 16 MiB in one step takes 0.2 s.
 *
 * @param fields At least one field.
 */
export function* withFiles(fields: object, files: SandboxJob['files'] = []): Generator<undefined, Buffer> {
  const parts = [Buffer.from(`${JSON.stringify(fields).slice(0, -1)},"files":{`)]
  for (const [nth, { name, bytes }] of files.entries()) {
    parts.push(Buffer.from(`${nth > 0 ? ',' : ''}${JSON.stringify(name)}:"`))
    for (let at = 0; at < bytes.length; at += ENCODED_BYTES) {
      parts.push(Buffer.from(bytes.toString('base64', at, at + ENCODED_BYTES), 'latin1'))
      yield
    }
    parts.push(Buffer.from('"'))
  }
  parts.push(Buffer.from('}}'))
  return Buffer.concat(parts)
}

export interface ChannelListener {
  /** Called when the interpreter is ready, if the supervisor loads its own interpreter. `versions` maps import names to library versions. */
  readonly onReady?: (versions: Readonly<Record<string, string>>) => void
  readonly onEvent: (event: SandboxEvent) => void
  readonly onEnd: (end: SandboxEnd) => void
}

/**
 * The service's end of the channel to a supervisor, the process that runs and limits programs in a sandbox (grammar: python/supervise/frames.py).
 *
 * The supervisor is part of Sluice and enforces the limits, but runs next to hostile code. Messages are therefore validated here too. An invalid
 * message means that the sandbox is compromised or broken.
 */
export class Channel {
  readonly #listener: ChannelListener
  readonly #frames = new FrameReader(PLOT_BYTES_MAX)
  readonly #streams = { stdout: new Text(), stderr: new Text() }
  #plots = 0
  #plotsBytes = 0
  #isEnded = false

  constructor(listener: ChannelListener) {
    this.#listener = listener
  }

  /**
   * Handles bytes from the supervisor, unless the run has ended.
   *
   * @throws ServiceError `sandbox_lost` for an invalid message, which also ends the run
   */
  take(chunk: Buffer): void {
    if (this.#isEnded) return
    try {
      for (const { type, payload } of this.#frames.push(chunk)) {
        this.#handle(type, payload)
        if (this.#isEnded) return
      }
    } catch (cause) {
      this.#isEnded = true
      throw new ServiceError('sandbox_lost', 'The sandbox failed while the code was running.', { cause })
    }
  }

  #handle(type: string, payload: Buffer): void {
    switch (type) {
      case 'R':
        return this.#listener.onReady?.(Versions.parse(JSON.parse(payload.toString())))
      case 'O':
        return this.#output('stdout', this.#streams.stdout.take(payload))
      case 'E':
        return this.#output('stderr', this.#streams.stderr.take(payload))
      case 'P':
        return this.#plot(payload)
      case 'X':
        return this.#end(payload)
      default:
        throw new RangeError(`unknown frame type: ${type}`)
    }
  }

  #output(stream: 'stdout' | 'stderr', text: string): void {
    if (text) this.#listener.onEvent({ type: 'output', stream, text })
  }

  #plot(png: Buffer): void {
    this.#plots += 1
    this.#plotsBytes += png.length
    if (this.#plots > PLOTS_MAX) throw new RangeError(`the run sent more than ${PLOTS_MAX} plots`)
    if (this.#plotsBytes > PLOTS_BYTES_MAX) throw new RangeError(`the plots have more than ${PLOTS_BYTES_MAX} bytes`)
    if (!png.subarray(0, PNG.length).equals(PNG)) throw new RangeError('a plot is not a PNG image')
    // The plot is a view into a buffer that may be a hundred times larger. The plot is copied, so that the buffer can
    // be freed.
    this.#listener.onEvent({ type: 'plot', png: new Uint8Array(png) })
  }

  #end(payload: Buffer): void {
    const end = End.parse(JSON.parse(payload.toString()))
    this.#isEnded = true
    for (const stream of ['stdout', 'stderr'] as const) this.#output(stream, this.#streams[stream].end())
    this.#listener.onEnd(end.type === 'exit' ? { type: 'exit', exitCode: end.exit_code } : end)
  }
}

class Text {
  readonly #decoder = new StringDecoder('utf8')
  #bytes = 0

  take(bytes: Buffer): string {
    this.#bytes += bytes.length
    const bytesMax = OUTPUT_BYTES_MAX + LAST_LINE_BYTES_MAX
    if (this.#bytes > bytesMax) throw new RangeError(`the output has more than ${bytesMax} bytes`)
    return this.#decoder.write(bytes)
  }

  end(): string {
    return this.#decoder.end()
  }
}
