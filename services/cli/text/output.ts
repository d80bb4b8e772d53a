import { once } from 'node:events'
import { stripVTControlCharacters, styleText } from 'node:util'
import { isStartedByNpx } from '#shared/config/config.ts'
import { type CsvCell, csvLine } from '#shared/lib/csv.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'

export const EXIT = { ok: 0, failed: 1, usage: 2, cancelled: 3, unreachable: 4, refused: 5, interrupted: 130 } as const
export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** An error that is shown to the user without a stack trace: the problem and its remedy, if there is one. */
export class CommandError extends Error {
  readonly exit: ExitCode
  readonly next: string | undefined

  constructor(exit: ExitCode, message: string, next?: string, cause?: unknown) {
    super(message, { cause })
    this.name = 'CommandError'
    this.exit = exit
    this.next = next
  }
}

/** A list of choices for a message: `table, json or csv`. */
export function orList(choices: readonly string[]): string {
  return choices.join(', ').replace(/, (?=[^,]*$)/, ' or ')
}

export function usageError(message: string, next?: string): CommandError {
  return new CommandError(EXIT.usage, message, next)
}

/** Error for a file or folder that cannot be read or written, without the name of the system call. */
export function fileError(path: string, error: Error, next?: string): CommandError {
  const reason = FILE_PROBLEMS[(error as NodeJS.ErrnoException).code ?? '']
  return usageError(reason === undefined ? `${path}: ${error.message}` : `${path} ${reason}.`, next)
}

const FILE_PROBLEMS: Readonly<Record<string, string>> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EISDIR: 'is a directory',
  EACCES: 'cannot be used: permission denied',
  EPERM: 'cannot be used: permission denied',
  EROFS: 'cannot be written: the file system is read-only',
  ENOSPC: 'cannot be written: no space is left on the device',
}

/** Replaces `sluice` with `npx sluice` in the commands of a text if npx started this process, because `sluice` is then not on the PATH. */
export function asTyped(text: string, isByNpx = isStartedByNpx()): string {
  return isByNpx ? text.replaceAll(/(?<![\w./-]|npx )sluice (?=[a-z-]+|COMMAND)/g, 'npx sluice ') : text
}

/** Output streams of the command: results to `out` (stdout), and messages and progress to `err` (stderr). */
export interface Streams {
  readonly out: NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }
  readonly err: NodeJS.WritableStream & { isTTY?: boolean; columns?: number }
}

/** Size that is assumed if a terminal reports no size, or a size of 0. A table in a file or pipe has no maximum width. */
const COLUMNS_DEFAULT = 80
const ROWS_DEFAULT = 24

export const FORMATS = ['table', 'json', 'csv'] as const
export type Format = (typeof FORMATS)[number]

/**
 * Writes results as text, as one line of JSON each, or as CSV. Default: text on a terminal, JSON in a pipe. The columns
 * of CSV are the fields of the first result. A nested object becomes columns such as `limits.running`, and a list is
 * joined by semicolons.
 */
export class Output {
  readonly isHumanReadable: boolean
  /** Whether stderr is a terminal too, so that a progress line can be redrawn. */
  readonly canRedraw: boolean
  readonly #streams: Streams
  readonly #format: Format
  #columns: readonly string[] | undefined

  constructor(streams: Streams, format?: Format) {
    this.#streams = streams
    this.#format = format ?? (streams.out.isTTY === true ? 'table' : 'json')
    this.isHumanReadable = this.#format === 'table'
    this.canRedraw = this.isHumanReadable && streams.out.isTTY === true && streams.err.isTTY === true
  }

  get columns(): number {
    const { columns, isTTY } = this.#streams.out
    return columns || (isTTY ? COLUMNS_DEFAULT : Number.MAX_SAFE_INTEGER)
  }

  get rows(): number {
    return this.#streams.out.rows || ROWS_DEFAULT
  }

  onResize(listener: () => void): () => void {
    this.#streams.out.on('resize', listener)
    return () => void this.#streams.out.off('resize', listener)
  }

  /** Writes one result as a line of JSON, or as a row of CSV. Resolves when stdout accepts more. */
  async json(value: unknown): Promise<void> {
    if (this.#format !== 'csv') return await this.write(`${JSON.stringify(value)}\n`)
    const cells = cellsOf(value)
    if (!this.#columns) {
      this.#columns = [...cells.keys()]
      await this.write(csvLine(this.#columns))
    }
    await this.write(csvLine(this.#columns.map((name) => cells.get(name) ?? '')))
  }

  async write(chunk: string | Uint8Array): Promise<void> {
    if (!this.#streams.out.write(chunk)) await once(this.#streams.out, 'drain')
  }

  note(line: string): void {
    this.#streams.err.write(`${asTyped(line)}\n`)
  }

  redraw(line: string): void {
    this.#streams.err.write(`\r\x1b[K${line}`)
  }
}

function cellsOf(value: unknown, prefix = ''): Map<string, CsvCell> {
  const cells = new Map<string, CsvCell>()
  for (const [key, field] of Object.entries((value ?? {}) as object)) {
    const name = `${prefix}${key}`
    if (Array.isArray(field)) {
      cells.set(name, field.map((one) => (typeof one === 'object' ? JSON.stringify(one) : String(one))).join(';'))
    } else if (typeof field === 'object' && field !== null) {
      for (const [inner, cell] of cellsOf(field, `${name}.`)) cells.set(inner, cell)
    } else cells.set(name, typeof field === 'number' ? field : String(field ?? ''))
  }
  return cells
}

interface Table {
  readonly head: readonly string[]
  readonly rows: readonly (readonly string[])[]
  /** Columns that may be dropped if the terminal is too narrow. The first one is dropped first. */
  readonly spare: readonly string[]
  /** Columns of free text, which are truncated before a spare column is dropped. */
  readonly cut?: readonly string[]
}

const GAP = '  '
const CELL_MIN = 6
const TEXT_MIN = 12

/**
 * Formats a table in at most `columnsMax` columns if possible:
 *
 * 1. Columns of free text shrink to at least {@link TEXT_MIN} characters.
 * 2. If the table is still too wide, then optional columns ({@link Table.spare}) are dropped. Columns with one value in
 *    all rows are dropped first.
 * 3. Finally, the widest columns are truncated. The first column is never truncated, because users copy the ids in it.
 */
export function tableOf(table: Table, columnsMax: number): string {
  return linesOf(layoutOf(table, columnsMax), [table.head, ...table.rows])
}

/** Columns of a table, for rows that are printed later. */
export type Layout = readonly Column[]

interface Column {
  readonly name: string
  readonly at: number
  width: number
}

/** Selects the columns and widths of {@link tableOf}. */
export function layoutOf({ head, rows, spare, cut = [] }: Table, columnsMax: number): Layout {
  const lines = [head, ...rows].map((row) => row.map(plain))
  let shown = head.map(
    (name, at): Column => ({ name, at, width: Math.max(...lines.map((row) => row[at]?.length ?? 0)) }),
  )
  const leastOf = ({ name, width }: Column) => (cut.includes(name) ? Math.min(width, TEXT_MIN) : width)
  const isTooWide = (widthOf: (column: Column) => number) =>
    shown.reduce((sum, column) => sum + widthOf(column) + GAP.length, -GAP.length) > columnsMax
  const isConstant = (name: string) => new Set(lines.slice(1).map((row) => row[head.indexOf(name)])).size < 2
  const constants = lines.length > 2 ? spare.filter((name) => isConstant(name) && !cut.includes(name)) : []
  for (const name of [...constants, ...spare])
    if (isTooWide(leastOf)) shown = shown.filter((column) => column.name !== name)
  const widest = (among: readonly Column[], min: number) =>
    among.filter(({ width }) => width > min).sort((a, b) => b.width - a.width)[0]
  while (isTooWide(({ width }) => width)) {
    const texts = shown.filter(({ name }) => cut.includes(name))
    const column = widest(texts, TEXT_MIN) ?? widest(shown.slice(1), CELL_MIN)
    if (!column) break
    column.width--
  }
  return shown
}

export function linesOf(layout: Layout, rows: readonly (readonly string[])[]): string {
  const text = rows.map((row) => layout.map(({ at, width }) => cellOf(plain(row[at] ?? ''), width)).join(GAP))
  return `${text.map((line) => line.trimEnd()).join('\n')}\n`
}

function cellOf(text: string, width: number): string {
  return text.length > width ? `${beginning(text, width - 1)}…` : text.padEnd(width)
}

/** Returns the first characters of a text, without a trailing half of a surrogate pair. */
export function beginning(text: string, charsMax: number): string {
  return text.slice(0, Math.max(0, charsMax)).replace(/[\ud800-\udbff]$/, '')
}

/** Returns untrusted text on one line, without control characters, which could overwrite the screen. */
export function plain(text: string): string {
  return printable(text).replaceAll(/\s+/g, ' ').trim()
}

/**
 * Returns untrusted text without escape sequences, bidirectional overrides and control characters, except line breaks and tabs. An override could
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

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 }

/**
 * Parses a duration in seconds, from a text such as `90`, `90s`, `15m`, `2h` or `1d`.
 *
 * @throws CommandError with the option's name
 */
export function secondsOf(option: string, text: string): number {
  const [, digits, unit = 's'] = /^(\d{1,9})([smhd])?$/.exec(text) ?? []
  if (digits === undefined) {
    throw usageError(`--${option} must be a duration such as 90s, 15m, 2h or 1d; got '${text}'.`)
  }
  return Number(digits) * (UNIT_SECONDS[unit] ?? 1)
}

/**
 * Parses a point in time in Unix seconds: an ISO 8601 date and time, Unix seconds, or a duration relative to now.
 *
 * @param sign 1: the duration counts from now. -1: the duration counts back from now.
 * @throws CommandError with the option's name
 */
export function timeOf(option: string, text: string, nowMs: number, sign: 1 | -1): number {
  if (/^\d{10,11}$/.test(text)) return Number(text)
  if (/^\d+[smhd]$/.test(text)) return Math.floor(nowMs / 1_000) + sign * secondsOf(option, text)
  const ms = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN
  if (Number.isFinite(ms)) return Math.floor(ms / 1_000)
  throw usageError(
    `--${option} must be a time such as 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 15m; got '${text}'.`,
  )
}

const WIDTH = 80

/**
 * Wraps a help text to 80 columns without changing its words.
 *
 * Paragraphs are filled. An option's description continues in its own column. Usage lines and examples continue indented. A line of an example that
 * is broken ends in a backslash, so that it can be pasted into a shell.
 */
export function formatHelp(help: string): string {
  return blocksOf(help).map(fill).join('\n')
}

function blocksOf(help: string): string[] {
  const blocks: string[] = []
  let canContinue = false
  for (const line of help.split('\n')) {
    const last = blocks.at(-1) ?? ''
    const indent = indentOf(line)
    const isPart = indent === 0 ? !last.startsWith(' ') : indent > 3 && (isUsage(last) || indent === hangOf(last))
    if (canContinue && line !== '' && isPart && !isUsage(line)) blocks[blocks.length - 1] = `${last} ${line.trim()}`
    else blocks.push(line)
    // A line after a heading begins a new block, so it is not joined to the heading.
    canContinue = line !== '' && !/^\w.*:$/.test(line)
  }
  return blocks
}

function fill(block: string): string {
  if (block.length <= WIDTH) return block
  const isShell = isExample(block)
  const continuation = isShell ? ' \\' : ''
  const hang = ' '.repeat(isUsage(block) || isShell ? indentOf(block) + (isShell ? 4 : 9) : hangOf(block))
  const lines: string[] = []
  let line = ' '.repeat(indentOf(block))
  for (const word of isShell ? shellWords(block) : usageWords(block)) {
    const isFirst = line.trim() === ''
    if (!isFirst && line.length + word.length + 1 + continuation.length > WIDTH) {
      lines.push(line + continuation)
      line = hang + word
    } else line += isFirst ? word : word.replace(/^(?! )/, ' ')
  }
  return [...lines, line].join('\n')
}

/**
 * Returns the indentation of the second and later lines of a block, which is the column where the description of its option begins. At least two
 * spaces separate an option from its description.
 */
function hangOf(block: string): number {
  const indent = indentOf(block)
  // A block with an indentation of more than 6 columns is a description that begins on the line below its option.
  if (indent === 0 || indent > 6) return indent
  const [lead] = /^ +\S+(?: \S+)*? {2,}(?=\S)/.exec(block) ?? []
  return lead?.length ?? indent + 2
}

/** Splits a block into words. A group in brackets is one word. Extra spaces before a word are preserved, because they align the columns. */
function usageWords(block: string): string[] {
  return (
    block
      .trim()
      .match(/(?:^| +)(?:\[[^\]]*\]|[^\s[]+|\[)+/g)
      ?.map((word) => word.replace(/^ (?! )/, '')) ?? []
  )
}

function shellWords(block: string): string[] {
  return block.trim().match(/(?:\| )?(?:--?[a-z-]+ (?!-))?(?:'[^']*'|[^\s'])+/g) ?? []
}

function isUsage(line: string): boolean {
  return /^(Usage: | {7}sluice )/.test(line)
}

function isExample(line: string): boolean {
  return /^ {2}([A-Z_]+=\S+ )*sluice /.test(line)
}

function indentOf(line: string): number {
  return line.length - line.trimStart().length
}

/** Maximum characters of a name that are compared, because the time grows with the square of the length. */
const CHARS_MAX = 64
const SUGGESTIONS_MAX = 3

export function didYouMean(unknown: string, names: readonly string[]): string {
  const similar = similarNames(unknown, names)
  return similar.length > 0 ? `Did you mean ${similar.join(' or ')}? ` : ''
}

/**
 * Returns names that a typo may have meant, most similar first. Two names are similar if one is a prefix of the other, or if their edit distance is
 * at most a quarter of the letters. Two swapped letters are one edit.
 */
export function similarNames(unknown: string, names: readonly string[]): string[] {
  const typed = unknown.toLowerCase().slice(0, CHARS_MAX)
  const distanceMax = Math.max(1, Math.floor(typed.length / 4))
  const ranked = similarNameOf(typed, names).flatMap(({ name, distance }) => {
    if (distance <= distanceMax) return { name, rank: distance }
    const known = name.toLowerCase()
    const isPrefix = typed.length > 2 && known.length > 2 && (known.startsWith(typed) || typed.startsWith(known))
    return isPrefix ? { name, rank: distanceMax + 1 } : []
  })
  const sorted = ranked.toSorted((one, other) => one.rank - other.rank)
  return sorted.slice(0, SUGGESTIONS_MAX).map(({ name }) => name)
}
