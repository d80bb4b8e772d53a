import { once } from 'node:events'
import { stripVTControlCharacters, styleText } from 'node:util'

/** Results go to `out` (stdout); messages and progress go to `err` (stderr). */
export interface Streams {
  readonly out: NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }
  readonly err: NodeJS.WritableStream & { isTTY?: boolean; columns?: number }
}

/** Defaults for a terminal that reports no size, or a size of 0. */
const COLUMNS_DEFAULT = 80
const ROWS_DEFAULT = 24

/** Writes results as text on a terminal, or as one line of JSON each with `--json` and in a pipe. */
export class Output {
  /** stdout is a terminal and `--json` was not given. */
  readonly isHumanReadable: boolean
  /** stderr is a terminal too, so a progress line can be redrawn. */
  readonly canRedraw: boolean
  readonly #streams: Streams

  /** @param isJson Print JSON even on a terminal. */
  constructor(streams: Streams, isJson: boolean) {
    this.#streams = streams
    this.isHumanReadable = streams.out.isTTY === true && !isJson
    this.canRedraw = this.isHumanReadable && streams.err.isTTY === true
  }

  get columns(): number {
    return this.#streams.out.columns || COLUMNS_DEFAULT
  }

  get rows(): number {
    return this.#streams.out.rows || ROWS_DEFAULT
  }

  /** Calls `listener` when the terminal size changes. @returns Removes the listener. */
  onResize(listener: () => void): () => void {
    this.#streams.out.on('resize', listener)
    return () => void this.#streams.out.off('resize', listener)
  }

  /** Writes one result as a line of JSON. Resolves when stdout accepts more. */
  async json(value: unknown): Promise<void> {
    await this.write(`${JSON.stringify(value)}\n`)
  }

  /** Writes part of a result unchanged. Resolves when stdout accepts more. */
  async write(chunk: string | Uint8Array): Promise<void> {
    if (!this.#streams.out.write(chunk)) await once(this.#streams.out, 'drain')
  }

  note(line: string): void {
    this.#streams.err.write(`${line}\n`)
  }

  redraw(line: string): void {
    this.#streams.err.write(`\r\x1b[K${line}`)
  }
}

export interface Table {
  readonly head: readonly string[]
  readonly rows: readonly (readonly string[])[]
  /** Columns to drop if the terminal is too narrow, in this order. */
  readonly spare: readonly string[]
}

const GAP = '  '
const CELL_MIN = 6

/**
 * Formats a table in at most `columnsMax` columns if possible. Spare columns are dropped first, then the widest columns are cut.
 * The first column is never cut, because it holds the id that users copy.
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
  /** Index of the column in a row. */
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

/** The first characters of a text, without a trailing half of a surrogate pair. */
export function beginning(text: string, charsMax: number): string {
  return text.slice(0, Math.max(0, charsMax)).replace(/[\ud800-\udbff]$/, '')
}

/** Untrusted text on one line, without control characters, which could overwrite the screen. */
export function plain(text: string): string {
  return printable(text).replaceAll(/\s+/g, ' ').trim()
}

/**
 * Untrusted text without escape sequences, bidirectional overrides and control characters, except line breaks and tabs. An override could
 * display the characters of a line in another order (CVE-2021-42574).
 */
export function printable(text: string): string {
  const bare = stripVTControlCharacters(text).replaceAll(/[\u202a-\u202e\u2066-\u2069]/g, '')
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression removes control characters
  return bare.replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}

export function coloured(colour: 'dim' | 'green' | 'red' | 'yellow', text: string): string {
  return styleText(colour, text, { stream: process.stdout })
}
