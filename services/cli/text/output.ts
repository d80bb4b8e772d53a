import { once } from 'node:events'
import { stripVTControlCharacters, styleText } from 'node:util'

/** Where a command writes: results to `out`, everything about them to `err`. */
export interface Streams {
  readonly out: NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }
  readonly err: NodeJS.WritableStream & { isTTY?: boolean; columns?: number }
}

/** Columns and rows of a terminal that does not know how many it has; some say 0. */
const COLUMNS_DEFAULT = 80
const ROWS_DEFAULT = 24

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

  /** How wide the terminal is. */
  get columns(): number {
    return this.#streams.out.columns || COLUMNS_DEFAULT
  }

  /** How high the terminal is. */
  get rows(): number {
    return this.#streams.out.rows || ROWS_DEFAULT
  }

  /** Calls `listener` when the terminal has another size. @returns Ends it. */
  onResize(listener: () => void): () => void {
    this.#streams.out.on('resize', listener)
    return () => void this.#streams.out.off('resize', listener)
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

/** Rows under a head, a cell for each of its names. */
export interface Table {
  readonly head: readonly string[]
  readonly rows: readonly (readonly string[])[]
  /** Names of columns that a narrow terminal goes without, the first one first. */
  readonly spare: readonly string[]
}

const GAP = '  '
/** A cell is not cut shorter. */
const CELL_MIN = 6

/**
 * A table as text of at most `columnsMax` columns, where that can be done: it goes without the spare columns, then the
 * widest are cut. The first column is always whole, because it is what people copy.
 */
export function tableOf({ head, rows, spare }: Table, columnsMax: number): string {
  const lines = [head, ...rows].map((row) => row.map(plain))
  const columns = head.map((name, at) => ({ name, at, width: Math.max(...lines.map((row) => row[at]?.length ?? 0)) }))
  const shown = fitted(columns, spare, columnsMax)
  const text = lines.map((row) => shown.map(({ at, width }) => cellOf(row[at] ?? '', width)).join(GAP))
  return `${text.map((line) => line.trimEnd()).join('\n')}\n`
}

interface Column {
  readonly name: string
  /** Its place in a row. */
  readonly at: number
  width: number
}

function fitted(columns: Column[], spare: readonly string[], columnsMax: number): Column[] {
  let shown = columns
  const isTooWide = () => shown.reduce((sum, { width }) => sum + width + GAP.length, -GAP.length) > columnsMax
  for (const name of spare) if (isTooWide()) shown = shown.filter((column) => column.name !== name)
  while (isTooWide()) {
    const [widest] = shown.slice(1).sort((a, b) => b.width - a.width)
    if (!widest || widest.width <= CELL_MIN) break
    widest.width--
  }
  return shown
}

function cellOf(text: string, width: number): string {
  return text.length > width ? `${beginning(text, width - 1)}…` : text.padEnd(width)
}

/** The first characters of a text: half of one that takes two is left out. */
export function beginning(text: string, charsMax: number): string {
  return text.slice(0, Math.max(0, charsMax)).replace(/[\ud800-\udbff]$/, '')
}

/** Text from elsewhere as a terminal may show it: control characters could rewrite what is on the screen. */
export function plain(text: string): string {
  return printable(text).replaceAll(/\s+/g, ' ').trim()
}

/**
 * Text from elsewhere with its lines and tabs, without what a terminal would obey, and without what turns the direction of the text
 * around it: that would make a line say something else (CVE-2021-42574).
 */
export function printable(text: string): string {
  const bare = stripVTControlCharacters(text).replaceAll(/[\u202a-\u202e\u2066-\u2069]/g, '')
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return bare.replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}

/** Text in the colour of its meaning, where the terminal shows colours. */
export function coloured(colour: 'dim' | 'green' | 'red' | 'yellow', text: string): string {
  return styleText(colour, text, { stream: process.stdout })
}
