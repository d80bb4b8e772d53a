export interface LineSink {
  write(text: string): unknown
}

const WAITING_CHARS_MAX = 64 * 1024

/**
 * Buffers log lines and writes them once per event-loop iteration: a busy process writes many lines, and each write is a system call. Buffered lines
 * are written before the process exits; only a killed process loses those of its last iteration.
 */
export class BatchedLines implements LineSink {
  readonly #sink: LineSink
  #waiting = ''
  readonly #flush = () => this.flush()

  constructor(sink: LineSink) {
    this.#sink = sink
    process.once('exit', this.#flush)
  }

  /** Buffers one line, including its newline. */
  write(line: string): void {
    if (this.#waiting === '') setImmediate(this.#flush)
    this.#waiting += line
    if (this.#waiting.length > WAITING_CHARS_MAX) this.flush()
  }

  flush(): void {
    const text = this.#waiting
    this.#waiting = ''
    if (text !== '') this.#sink.write(text)
  }
}
