import { emitKeypressEvents } from 'node:readline'
import type { ReadStream } from 'node:tty'
import type { Output } from '#services/cli/text/output.ts'

/*
 * A terminal that is drawn as a whole: the alternate screen (xterm's mode 1049), without a cursor (25) and without wrapped
 * lines (7). A frame is one write that clears only what it does not cover, between the marks of a synchronized update (2026),
 * which other terminals ignore: so nothing flickers.
 */
const ENTER = '\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J'
const LEAVE = '\x1b[?7h\x1b[?25h\x1b[?1049l'
const FRAME = { begin: '\x1b[?2026h\x1b[H', end: '\x1b[J\x1b[?2026l' } as const
const TO_LINE_END = '\x1b[K'
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** What the person at the terminal does. */
export interface Hands {
  /** A key, by its name in `node:readline`. */
  onKey(name: string): void
  onResize(): void
  /** Ctrl-C, or a signal that ends a process. */
  onSignal(signal: NodeJS.Signals): void
}

/** Takes a terminal over. Dispose it: that gives the terminal back as it was, which also happens when the process ends. */
export class Screen implements Disposable {
  readonly #out: Output
  readonly #input: ReadStream
  readonly #undo: (() => void)[] = []
  readonly #giveBack = () => this[Symbol.dispose]()
  #isOver = false

  constructor(out: Output, input: ReadStream, { onKey, onResize, onSignal }: Hands) {
    this.#out = out
    this.#input = input
    process.once('exit', this.#giveBack)
    this.#undo.push(() => process.off('exit', this.#giveBack), out.onResize(onResize))
    for (const signal of SIGNALS) {
      const listener = () => onSignal(signal)
      process.on(signal, listener)
      this.#undo.push(() => process.off(signal, listener))
    }
    if (input.isTTY) this.#listen(onKey, onSignal)
    void out.write(ENTER)
  }

  /** Shows these lines and nothing else. */
  async draw(lines: readonly string[]): Promise<void> {
    const text = lines.map((line) => line + TO_LINE_END).join('\r\n')
    if (!this.#isOver) await this.#out.write(FRAME.begin + text + FRAME.end)
  }

  [Symbol.dispose](): void {
    if (this.#isOver) return
    this.#isOver = true
    for (const undo of this.#undo) undo()
    // A terminal is written to at once, also while the process ends.
    void this.#out.write(LEAVE)
  }

  #listen(onKey: Hands['onKey'], onSignal: Hands['onSignal']): void {
    const listener = (_text: string | undefined, { name, ctrl }: { name?: string; ctrl?: boolean }) => {
      // The terminal sends no signal for it while every key comes as it is.
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
