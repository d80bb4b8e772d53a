import { exactLine, withoutFormula } from '#shared/lib/csv.ts'
import { type AnswerForm, type Cells, cellText, type Row, resultCells, resultColumns } from './answers.ts'

export type TableFormat = 'csv' | 'tsv' | 'jsonl' | 'directory'

/** Format of a file by its extension. */
export const FORMATS: Readonly<Record<string, TableFormat>> = {
  '.csv': 'csv',
  '.tsv': 'tsv',
  '.tab': 'tsv',
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
}

export interface OutputOptions {
  readonly format: TableFormat | undefined
  /** Column separator of the input. */
  readonly delimiter: string
  /** Columns of the input. */
  readonly columns: readonly string[]
  readonly form: AnswerForm
  /** Whether CSV and TSV begin with a byte order mark, without which Excel does not read the text as UTF-8. */
  readonly hasMark?: boolean | undefined
}

/** Byte order mark of UTF-8. */
export const MARK = '\uFEFF'

/** Lines of the output of a table: the columns of the input, then the cells of the answer, as CSV, TSV or JSON Lines. */
export class OutputLines {
  readonly #columns: readonly string[]
  readonly #form: AnswerForm
  readonly #names: readonly string[]
  readonly #isJson: boolean
  readonly #delimiter: string
  readonly #hasMark: boolean

  constructor({ format, delimiter, columns, form, hasMark = false }: OutputOptions) {
    this.#hasMark = hasMark
    this.#form = form
    this.#columns = columns
    this.#isJson = format === 'jsonl'
    this.#delimiter = format === 'tsv' ? '\t' : delimiter === ';' ? ';' : ','
    // If a column of the input has the same name as an output column, then all output columns get other names. This happens if the output
    // of an earlier run is used as the input.
    const names = resultColumns(form)
    const isTaken = names.some((name) => columns.includes(name))
    this.#names = names.map((name) => (isTaken ? freeName(name, columns) : name))
  }

  header(): string {
    if (this.#isJson) return ''
    return `${this.#hasMark ? MARK : ''}${exactLine([...this.#columns, ...this.#names], this.#delimiter)}`
  }

  row(row: Row, cells: Cells): string {
    const added = resultCells(this.#form, cells)
    if (!this.#isJson) {
      const given = this.#columns.map((name) => cellText(row.get(name)))
      return exactLine([...given, ...added.map(csvCell)], this.#delimiter)
    }
    const own = this.#columns.filter((name) => row.has(name)).map((name) => [name, row.get(name)] as const)
    const pairs = [...own, ...this.#names.map((name, nth) => [name, added[nth]] as const)]
    return `${JSON.stringify(Object.fromEntries(pairs))}\n`
  }
}

function csvCell(value: unknown): string | number | null {
  return value === null || typeof value === 'number' ? value : withoutFormula(cellText(value))
}

function freeName(name: string, columns: readonly string[]): string {
  for (let nth = 2; ; nth++) if (!columns.includes(`${name}_${nth}`)) return `${name}_${nth}`
}
