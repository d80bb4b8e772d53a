/*
 * Reads the rows of a table: CSV, TSV, JSON Lines, or a directory with one text per file.
 *
 * Rows are read as a stream, so a file may be larger than the memory. A row has at most {@link ROW_BYTES_MAX}. The text
 * must be UTF-8, with or without a byte order mark. A file in UTF-16 or Latin-1, which spreadsheets also save, is
 * refused, because its letters would be decoded wrongly.
 */

import { createReadStream } from 'node:fs'
import { opendir, stat } from 'node:fs/promises'
import { extname, join } from 'node:path'
import { Readable } from 'node:stream'
import { type CsvError, type Options, parse } from 'csv-parse'
import { type CommandError, fileError, plain, usageError } from '#services/cli/text/output.ts'
import type { Row } from '#shared/tables/answers.ts'
import { FORMATS, MARK, type TableFormat } from '#shared/tables/output.ts'

const ROW_BYTES_MAX = 16 * 1024 * 1024
const FILES_MAX = 50_000
const HEAD_BYTES = 64 * 1024
const COLUMNS_MAX = 1_000
/** Maximum number of column names in an error message. */
const NAMES_MAX = 50

export interface Table {
  readonly path: string
  readonly format: TableFormat
  /** Column separator of CSV and TSV. */
  readonly delimiter: string
  /** Whether the file begins with a byte order mark. The output then has one too. */
  readonly hasMark?: boolean | undefined
  /** Maximum number of rows that are read, counted from the first row. Default: all rows. */
  readonly rowsMax?: number | undefined
}

/**
 * Returns the table at a path. Undefined if the extension of the file is not that of a table (see {@link FORMATS}).
 *
 * @throws CommandError if there is no such path
 */
export async function findTable(path: string): Promise<Table | undefined> {
  const entry = await stat(path).catch((error: Error) => {
    throw fileError(path, error)
  })
  if (entry.isDirectory()) return { path, format: 'directory', delimiter: '' }
  const format = FORMATS[extname(path).toLowerCase()]
  if (format === undefined) return undefined
  if (format === 'jsonl') return { path, format, delimiter: '' }
  const head = await headOf(path)
  return { path, format, delimiter: format === 'tsv' ? '\t' : delimiterOf(head), hasMark: head.startsWith(MARK) }
}

/**
 * Returns the separator that is most frequent in the first line. In countries with a decimal comma, spreadsheets
 * separate columns by `;`.
 */
function delimiterOf(head: string): string {
  const [line = ''] = head.replaceAll(/"[^"]*"/g, '').split(/\r?\n/, 1)
  const counted = [',', ';', '\t'].map((mark) => ({ mark, count: line.split(mark).length }))
  return counted.reduce((best, one) => (one.count > best.count ? one : best)).mark
}

async function headOf(path: string): Promise<string> {
  let text = ''
  for await (const chunk of createReadStream(path, { end: HEAD_BYTES - 1, encoding: 'utf8' })) text += chunk
  return text
}

/**
 * Yields the rows of a table. Empty lines are skipped.
 *
 * @throws CommandError with the number of the invalid line
 */
export async function* rowsOf(table: Table): AsyncGenerator<Row> {
  const { rowsMax = Number.POSITIVE_INFINITY } = table
  let count = 0
  for await (const row of allRowsOf(table)) {
    if (++count > rowsMax) return
    yield row
  }
}

async function* allRowsOf(table: Table): AsyncGenerator<Row> {
  if (table.format === 'directory') yield* filesOf(table.path)
  else if (table.format === 'jsonl') yield* objectsOf(table.path)
  else yield* recordsOf(table)
}

async function* recordsOf({ path, delimiter }: Table): AsyncGenerator<Row> {
  const options: Options = {
    ...{ delimiter, info: true, max_record_size: ROW_BYTES_MAX },
    ...{ relax_column_count: true, relax_quotes: true, skip_empty_lines: true },
  }
  const source = Readable.from(textOf(path))
  const parser = parse(options)
  source.on('error', (error) => parser.destroy(error)).pipe(parser)
  let columns: readonly string[] | undefined
  try {
    for await (const { record, info } of parser as AsyncIterable<CsvRecord>) {
      if (!columns) columns = checkedColumns(path, record)
      else if (record.length === columns.length) yield new Map(columns.map((name, nth) => [name, record[nth]]))
      else
        throw usageError(
          `${path}: line ${info.lines} has ${record.length} columns, and the header has ${columns.length}.`,
          QUOTING,
        )
    }
  } catch (error) {
    throw isCsvError(error) ? usageError(`${path}: ${csvProblem(error)}`, QUOTING) : error
  } finally {
    source.destroy()
  }
}

interface CsvRecord {
  readonly record: string[]
  readonly info: { readonly lines: number }
}

const QUOTING =
  'Quote each cell that contains a separator, a line break or a quote, and double the quotes in it: "say ""hi"""'

function checkedColumns(path: string, names: readonly string[]): string[] {
  if (names.length > COLUMNS_MAX) throw usageError(`${path}: the header has more than ${COLUMNS_MAX} columns.`)
  const columns = names.map((name) => name.trim())
  const twice = columns.find((name, nth) => columns.indexOf(name) < nth)
  if (twice === undefined) return columns
  throw usageError(`${path}: the header has the column '${plain(twice)}' twice. Rename one of them.`)
}

function isCsvError(error: unknown): error is CsvError {
  return error instanceof Error && String((error as { code?: unknown }).code).startsWith('CSV_')
}

function csvProblem({ code, message, lines }: CsvError): string {
  if (code === 'CSV_MAX_RECORD_SIZE')
    return `a row has more than ${ROW_BYTES_MAX} bytes. Check that each quote is closed.`
  return code === 'CSV_QUOTE_NOT_CLOSED' ? `line ${lines}: a quote is not closed.` : `${plain(message)}.`
}

async function* objectsOf(path: string): AsyncGenerator<Row> {
  let number = 0
  for await (const line of linesOf(path)) {
    number++
    if (line.trim() === '') continue
    const value = parsed(line)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      throw usageError(`${path}: line ${number} is not a JSON object.`)
    }
    yield new Map(Object.entries(value))
  }
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}

async function* linesOf(path: string): AsyncGenerator<string> {
  let rest = ''
  for await (const text of textOf(path)) {
    const lines = (rest + text).split('\n')
    rest = lines.pop() ?? ''
    if (rest.length > ROW_BYTES_MAX) throw usageError(`${path}: a line has more than ${ROW_BYTES_MAX} bytes.`)
    yield* lines
  }
  if (rest !== '') yield rest
}

/**
 * Yields the text of a file in pieces, without a byte order mark.
 *
 * @throws CommandError if the text is not UTF-8 or has a NUL
 */
async function* textOf(path: string): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  try {
    for await (const chunk of createReadStream(path)) yield withoutNul(path, decoder.decode(chunk, { stream: true }))
    yield decoder.decode()
  } catch (error) {
    if (!(error instanceof TypeError)) throw error
    throw usageError(`${path} is not UTF-8.`, 'Save the file as UTF-8; a spreadsheet calls it "CSV UTF-8".')
  }
}

function withoutNul(path: string, text: string): string {
  if (!text.includes('\0')) return text
  throw usageError(`${path} has a NUL byte, so it is no text in UTF-8.`, 'Save the file as UTF-8, or remove the byte.')
}

/** Yields one row per file of a directory, sorted by file name. Hidden files and subdirectories are skipped. */
async function* filesOf(directory: string): AsyncGenerator<Row> {
  const names: string[] = []
  for await (const entry of await opendir(directory)) {
    if (!entry.isFile() || entry.name.startsWith('.')) continue
    names.push(entry.name)
    if (names.length > FILES_MAX) throw usageError(`${directory} has more than ${FILES_MAX} files.`)
  }
  for (const name of names.toSorted()) {
    const path = join(directory, name)
    const { size } = await stat(path)
    if (size > ROW_BYTES_MAX) throw usageError(`${path} has more than ${ROW_BYTES_MAX} bytes.`)
    let text = ''
    for await (const piece of textOf(path)) text += piece
    yield new Map([
      ['file', name],
      ['text', text],
    ])
  }
}

/**
 * Returns the name of the column with the prompts.
 *
 * @param asked Option --prompt-column
 * @throws CommandError with the names of the columns, if the column is missing or ambiguous
 */
export function promptColumnOf({ path, format }: Table, columns: readonly string[], asked: string | undefined): string {
  if (format === 'directory') return 'text'
  const column = asked ?? (columns.includes('prompt') || columns.length !== 1 ? 'prompt' : columns[0])
  if (column !== undefined && columns.includes(column)) return column
  throw unknownColumn({ path }, column ?? '', columns, 'Choose the column of the prompts with --prompt-column.')
}

export function unknownColumn(
  { path }: Pick<Table, 'path'>,
  column: string,
  columns: readonly string[],
  next: string,
): CommandError {
  const names = columns.slice(0, NAMES_MAX).map((name) => `'${plain(name)}'`)
  const rest = columns.length > NAMES_MAX ? ` and ${columns.length - NAMES_MAX} more` : ''
  return usageError(`${path} has no column '${plain(column)}'. The columns are ${names.join(', ')}${rest}.`, next)
}
