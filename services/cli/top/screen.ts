import { emitKeypressEvents } from 'node:readline'
import type { ReadStream } from 'node:tty'
import type { Output } from '#services/cli/text/output.ts'

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

export interface ScreenHandlers {
  /** @param name The key's name in `node:readline`. */
  onKey(name: string): void
  onResize(): void
  /** Ctrl-C, SIGTERM or SIGHUP. */
  onSignal(signal: NodeJS.Signals): void
}

/** Takes over the terminal until disposed. The terminal is restored on disposal and when the process exits. */
export class Screen implements Disposable {
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

  /** Replaces the screen content. */
  async draw(lines: readonly string[]): Promise<void> {
    const text = lines.map((line) => line + TO_LINE_END).join('\r\n')
    if (!this.#isDisposed) await this.#out.write(FRAME.begin + text + FRAME.end)
  }

  [Symbol.dispose](): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    for (const undo of this.#undo) undo()
    // Writes to a terminal are synchronous, so this works in an exit handler too.
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
