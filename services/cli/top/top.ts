import { emitKeypressEvents } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import type { ReadStream } from 'node:tty'
import { ApiError } from '#services/cli/client/http.ts'
import { type Command, noArguments } from '#services/cli/commands/command.ts'
import { type CommandError, EXIT, type ExitCode, type Output } from '#services/cli/text/output.ts'
import { afterKey, FIRST_VIEW, frameOf, Reader, type Snapshot, type View } from './frame.ts'

const INTERVAL_SECONDS = { default: 2, max: 3_600 } as const

export const top: Command = {
  summary: 'Live view of pools, models, workers and jobs',
  help: `Usage: sluice top [--interval N] [--once]

Shows pools with slots and queue lengths, models, workers, and running and
queued jobs; refreshes until q or Ctrl-C. A key with the admin scope sees the
whole fleet. Any other key sees its models and the jobs of its project. When
output is not a TTY, prints one snapshot as a line of JSON.

Keys:
  q                quit
  s a m p e        sort jobs by status, age, model, project or endpoint
  r                reverse the order
  up, down, j, k   scroll the jobs; also page up, page down and home

Options:
  --interval N  refresh interval in seconds (default ${INTERVAL_SECONDS.default}, maximum ${INTERVAL_SECONDS.max})
  --once        print one snapshot as a line of JSON, even on a terminal

Examples:
  sluice top
  sluice top --interval 10
  sluice top --once | jq '.pools[] | {id, running, slots}'`,
  options: { interval: { type: 'string' }, once: { type: 'boolean' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const seconds = values.count('interval', 1, INTERVAL_SECONDS.max) ?? INTERVAL_SECONDS.default
    const reader = new Reader(api)
    const first = await reader.read()
    if (!out.isHumanReadable || values.has('once')) {
      await out.json(first)
      return EXIT.ok
    }
    const options = { out, input: process.stdin, url: api.http.url, intervalMs: seconds * 1_000 }
    const signal = await showLive(reader, first, options)
    // The terminal is already restored. The signal is raised again without a handler, so that the exit status of the process shows this
    // signal.
    if (signal !== undefined && signal !== 'SIGINT') process.kill(process.pid, signal)
    return signal === undefined ? EXIT.ok : EXIT.interrupted
  },
}

/*
 * Full-screen terminal output: alternate screen (xterm mode 1049), hidden cursor (25), no line wrap (7). To avoid flicker, a frame
 * is a single write that overwrites the previous frame and clears only the rest of each line. The write is a synchronized update
 * (mode 2026), which terminals without support ignore.
 */
const ENTER = '\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J'
const LEAVE = '\x1b[?7h\x1b[?25h\x1b[?1049l'
const FRAME = { begin: '\x1b[?2026h\x1b[H', end: '\x1b[J\x1b[?2026l' } as const
const TO_LINE_END = '\x1b[K'
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

interface LiveOptions {
  readonly out: Output
  readonly input: ReadStream
  readonly url: string
  readonly intervalMs: number
}

/** Client errors (4xx) that are temporary, so that reading continues. After any other client error, the view ends. */
const RETRYABLE_STATUSES = [429]

/**
 * Shows snapshots until the user quits. While the service is unreachable, the view keeps the last snapshot and shows the error in the last line.
 *
 * @returns The signal that ended the view. Undefined after the key q
 * @throws CommandError if the service rejects the key
 */
async function showLive(reader: Reader, first: Snapshot, options: LiveOptions): Promise<NodeJS.Signals | undefined> {
  return await new Live(reader, first, options).run()
}

class Live {
  readonly #reader: Reader
  readonly #options: LiveOptions
  readonly #stop = new AbortController()
  #snapshot: Snapshot
  #view: View = FIRST_VIEW
  #readError: string | undefined
  #rejection: CommandError | undefined
  #signal: NodeJS.Signals | undefined
  #changed = Promise.withResolvers<void>()

  constructor(reader: Reader, first: Snapshot, options: LiveOptions) {
    this.#reader = reader
    this.#snapshot = first
    this.#options = options
  }

  async run(): Promise<NodeJS.Signals | undefined> {
    const { out, input, url } = this.#options
    {
      using screen = new Screen(out, input, {
        onKey: (name) => this.#onKey(name),
        onResize: () => this.#changed.resolve(),
        onSignal: (signal) => {
          this.#signal = signal
          this.#end()
        },
      })
      void this.#readPeriodically()
      while (!this.#stop.signal.aborted) {
        // The promise is replaced before drawing, so that a change while drawing causes another frame.
        this.#changed = Promise.withResolvers()
        // The last column stays empty, because "clear to end of line" would erase a character in it.
        const frame = { columns: out.columns - 1, rows: out.rows, view: this.#view, url, readError: this.#readError }
        await screen.draw(frameOf(this.#snapshot, frame))
        await this.#changed.promise
      }
    }
    if (this.#rejection) throw this.#rejection
    return this.#signal
  }

  /** Reads snapshots until the view ends. Never throws, because an error is displayed or ends the view. */
  async #readPeriodically(): Promise<void> {
    const { signal } = this.#stop
    for (;;) {
      await delay(this.#options.intervalMs, undefined, { signal }).catch(() => {})
      if (signal.aborted) return
      try {
        this.#snapshot = await this.#reader.read()
        this.#readError = undefined
      } catch (error) {
        if (error instanceof ApiError && error.status < 500 && !RETRYABLE_STATUSES.includes(error.status)) {
          this.#rejection = error
          return this.#end()
        }
        this.#readError = `Retrying: ${error instanceof Error ? error.message : String(error)}`
      }
      this.#changed.resolve()
    }
  }

  #onKey(name: string): void {
    if (name === 'q') return this.#end()
    this.#view = afterKey(this.#view, name, this.#snapshot.jobs?.length ?? 0)
    this.#changed.resolve()
  }

  #end(): void {
    this.#stop.abort()
    this.#changed.resolve()
  }
}

interface ScreenHandlers {
  onKey(name: string): void
  onResize(): void
  /** Called for Ctrl-C, SIGTERM and SIGHUP. */
  onSignal(signal: NodeJS.Signals): void
}

/** Takes over the terminal until disposed. The terminal is restored on disposal and when the process exits. */
class Screen implements Disposable {
  readonly #out: Output
  readonly #input: ReadStream
  readonly #undo: (() => void)[] = []
  readonly #restore = () => this[Symbol.dispose]()
  #isDisposed = false

  constructor(out: Output, input: ReadStream, { onKey, onResize, onSignal }: ScreenHandlers) {
    this.#out = out
    this.#input = input
    process.once('exit', this.#restore)
    this.#undo.push(() => process.off('exit', this.#restore), out.onResize(onResize))
    for (const signal of SIGNALS) {
      const listener = () => onSignal(signal)
      process.on(signal, listener)
      this.#undo.push(() => process.off(signal, listener))
    }
    if (input.isTTY) this.#listen(onKey, onSignal)
    void out.write(ENTER)
  }

  async draw(lines: readonly string[]): Promise<void> {
    const text = lines.map((line) => line + TO_LINE_END).join('\r\n')
    if (!this.#isDisposed) await this.#out.write(FRAME.begin + text + FRAME.end)
  }

  [Symbol.dispose](): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    for (const undo of this.#undo) undo()
    void this.#out.write(LEAVE)
  }

  #listen(onKey: ScreenHandlers['onKey'], onSignal: ScreenHandlers['onSignal']): void {
    const listener = (_text: string | undefined, { name, ctrl }: { name?: string; ctrl?: boolean }) => {
      // In raw mode the terminal sends no SIGINT for Ctrl-C.
      if (ctrl && name === 'c') onSignal('SIGINT')
      else if (!ctrl && name !== undefined) onKey(name)
    }
    emitKeypressEvents(this.#input)
    this.#input.on('keypress', listener)
    this.#input.setRawMode(true)
    this.#input.resume()
    this.#undo.push(() => {
      this.#input.off('keypress', listener)
      this.#input.setRawMode(false)
      this.#input.pause()
    })
  }
}
