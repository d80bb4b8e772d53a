/** Where lines go, such as a destination of pino. */
export interface LineSink {
  write(text: string): unknown
}

/** Characters that are written before the turn of the loop is over. */
const WAITING_CHARS_MAX = 64 * 1024

/**
 * Writes the lines of one turn of the event loop at once, at its end: a busy process writes many, and each write asks the kernel.
 * What waits when the process exits is written before; only a process that is killed may lose the lines of the turn it is in.
 */
export class BatchedLines implements LineSink {
  readonly #sink: LineSink
  #waiting = ''
  readonly #flush = () => this.flush()

  constructor(sink: LineSink) {
    this.#sink = sink
    process.once('exit', this.#flush)
  }

  /** Takes a line with its end. */
  write(line: string): void {
    if (this.#waiting === '') setImmediate(this.#flush)
    this.#waiting += line
    if (this.#waiting.length > WAITING_CHARS_MAX) this.flush()
  }

  /** Writes what waits, now. */
  flush(): void {
    const text = this.#waiting
    this.#waiting = ''
    if (text !== '') this.#sink.write(text)
  }
}
