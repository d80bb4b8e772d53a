import { once } from 'node:events'
import { stripVTControlCharacters, styleText } from 'node:util'

/** Where a command writes: results to `out`, everything about them to `err`. */
export interface Streams {
  readonly out: NodeJS.WritableStream & { isTTY?: boolean; columns?: number }
  readonly err: NodeJS.WritableStream & { isTTY?: boolean; columns?: number }
}

/** Columns of an error stream that is no terminal, or does not know. */
const COLUMNS_DEFAULT = 80

/** Results for a person at a terminal, or one line of JSON each for a program. */
export class Output {
  /** True when people read the results. */
  readonly isForPeople: boolean
  /** True when a line on the error stream can be drawn again. */
  readonly canRedraw: boolean
  readonly #streams: Streams

  /** @param isJson JSON also on a terminal. */
  constructor(streams: Streams, isJson: boolean) {
    this.#streams = streams
    this.isForPeople = streams.out.isTTY === true && !isJson
    this.canRedraw = this.isForPeople && streams.err.isTTY === true
  }

  get columns(): number {
    return this.#streams.err.columns ?? COLUMNS_DEFAULT
  }

  /** One result as a line of JSON. Resolves when the reader has room for more. */
  async json(value: unknown): Promise<void> {
    await this.write(`${JSON.stringify(value)}\n`)
  }

  /** Part of a result as it is. Resolves when the reader has room for more. */
  async write(chunk: string | Uint8Array): Promise<void> {
    if (!this.#streams.out.write(chunk)) await once(this.#streams.out, 'drain')
  }

  /** A line for people, beside the results. */
  note(line: string): void {
    this.#streams.err.write(`${line}\n`)
  }

  /** Replaces the line the cursor is on, on the error stream. */
  redraw(line: string): void {
    this.#streams.err.write(`\r\x1b[K${line}`)
  }
}

/** Columns under each other, the last one as long as it is. */
export function tableOf(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, ...rows].map((row) => row.map(plain))
  const widths = head.map((_, column) => Math.max(...lines.map((row) => row[column]?.length ?? 0)))
  const text = lines.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
  return `${text.join('\n')}\n`
}

/** Text from elsewhere as a terminal may show it: control characters could rewrite what is on the screen. */
export function plain(text: string): string {
  return printable(text).replaceAll(/\s+/g, ' ').trim()
}

/** Text from elsewhere with its lines and tabs, without what a terminal would obey. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return stripVTControlCharacters(text).replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}

/** Text in the colour of its meaning, where the terminal shows colours. */
export function coloured(colour: 'green' | 'red' | 'yellow', text: string): string {
  return styleText(colour, text, { stream: process.stdout })
}
