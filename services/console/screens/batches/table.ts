import { parse } from 'csv-parse/browser/esm/sync'
import { type Batch, fetchApi, type Model } from '#services/console/api/client.ts'
import { usdText } from '#services/console/api/clock.ts'
import {
  type AnswerForm,
  type Cells,
  cellsOf,
  chatBodies,
  customIdOf,
  EMPTY_PROMPT,
  FORM_KEY,
  formIn,
  formText,
  isEmptyRow,
  NO_RESULT,
  promptColumns,
  promptOf,
  promptPieces,
  type Result,
  type Row,
  valuesIn,
} from '#shared/tables/answers.ts'
import { OutputLines } from '#shared/tables/output.ts'

/*
 * Tables from which the console and `sluice batch` make batches. The table is uploaded as a file, and the metadata of the batch contains
 * the id of this file. A later download of the results reads the file, so the CSV has the columns of the table even in another browser. Row
 * 3 of a table has the custom id `row-3`.
 */

export const COMMAND = 'npx sluice batch prompts.csv --model MODEL --prompt-column prompt'
/** Maximum bytes of a file that are read to find its separator, or the endpoint in its first line. */
export const HEAD_BYTES = 256 * 1024
/** Maximum bytes of a table. The bound is low, because all rows are in the memory of the tab. */
const TABLE_BYTES_MAX = 20_000_000
const ROWS_MAX = 50_000

export const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])

/** Returns the counts of the requests of a batch, with the number of answers that are invalid for its table. */
export function countsOf({ request_counts, invalid_answers }: Batch) {
  return { ...request_counts, invalid: invalid_answers ?? 0 }
}

/** Number of requests that *Retry failed rows* runs again. */
export function failuresOf(batch: Batch): number {
  return countsOf(batch).failed + countsOf(batch).invalid
}

export interface Table {
  readonly columns: readonly string[]
  readonly rows: readonly Row[]
  /** Column separator of the file. Empty for JSON Lines. */
  readonly delimiter: string
}

/**
 * Returns CSV with every row of the table and its result, as `sluice batch` writes it.
 *
 * @param results CSV of `GET /v1/batches/{id}/results`
 */
export function joined({ columns, rows, delimiter }: Table, results: string, form: AnswerForm): string {
  const valuesOf = valuesIn(form)
  const byId = resultsIn(results)
  const { prompt, shown = columns, rows: rowsMax } = form
  const output = new OutputLines({ format: 'csv', delimiter, columns: shown, form })
  const rowLines = rows.slice(0, rowsMax).map((row, nth) => {
    if (prompt && isEmptyRow(row, prompt)) return output.row(row, EMPTY_PROMPT)
    const result = byId.get(customIdOf(nth + 1))
    return output.row(row, result ? cellsOf(result, valuesOf) : NO_RESULT)
  })
  return [output.header(), ...rowLines].join('')
}

/** Reads the CSV of `GET /v1/batches/{id}/results`. Returns the results by custom id. */
function resultsIn(csv: string): ReadonlyMap<string, Result> {
  const [, ...lines] = parse(csv, { bom: true }) as string[][]
  return new Map(lines.map(([id = '', ...cells]) => [id.replace(ESCAPED, ''), resultIn(cells)]))
}

function resultIn([answer = '', error = '', finishReason = '', input = '', output = '']: string[]): Result {
  const countOf = (text: string) => (text === '' ? null : Number(text))
  return {
    answer: answer.replace(ESCAPED, ''),
    error,
    finishReason,
    inputTokens: countOf(input),
    outputTokens: countOf(output),
  }
}

interface FailedRowsOptions {
  readonly signal?: AbortSignal
  /**
   * Maximum number of failed requests that are read. Ignored for a batch with invalid answers, because only the whole result shows which answers are
   * invalid.
   */
  readonly limit?: number
}

/** Returns the errors of the failed requests and of the invalid answers of a batch, by custom id. */
export async function failedRowsOf(
  batch: Batch,
  { signal, limit = ROWS_MAX }: FailedRowsOptions = {},
): Promise<ReadonlyMap<string, string>> {
  const cells = await cellsByIdOf(batch, batch.invalid_answers ? '' : `&status=failed&limit=${limit}`, signal)
  return new Map([...cells].flatMap(([customId, { error }]) => (error === '' ? [] : [[customId, error]])))
}

/** Returns results of a batch as cells of its table, by custom id. @param query Parameters of the results endpoint, such as `&limit=3` */
export async function cellsByIdOf(
  { id, metadata }: Pick<Batch, 'id' | 'metadata'>,
  query: string,
  signal?: AbortSignal,
): Promise<ReadonlyMap<string, Cells>> {
  const response = await fetchApi(`/v1/batches/${id}/results?format=csv${query}`, signal ? { signal } : {})
  const valuesOf = valuesIn(formIn(metadata[FORM_KEY]))
  return new Map([...resultsIn(await response.text())].map(([key, result]) => [key, cellsOf(result, valuesOf)]))
}

/** The apostrophe that the CSV of the service has before a text that a spreadsheet would run as a formula. */
const ESCAPED = /^'(?=[=+\-@\t\r\n])/

/**
 * Reads a CSV, TSV or JSONL file.
 *
 * @param name Name of the file
 * @param command Command that an error names for a file that is too large
 * @throws Error with the problem of the file
 */
export async function tableOf(file: Blob, name: string, command = COMMAND): Promise<Table> {
  if (file.size > TABLE_BYTES_MAX) {
    const size = `${Math.ceil(file.size / 1e6).toLocaleString('en')} MB`
    throw new Error(`The file has ${size}, too much for a browser. Run: ${command}`)
  }
  const text = await textOf(file)
  return /\.(jsonl|ndjson)$/i.test(name) ? objectsIn(text) : recordsIn(text)
}

function objectsIn(text: string): Table {
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  const rows = lines.map((line): Row => new Map(Object.entries(JSON.parse(line) as object)))
  return { columns: [...new Set(rows.flatMap((row) => [...row.keys()]))], rows, delimiter: '' }
}

function recordsIn(text: string): Table {
  let columns: readonly string[] = []
  const delimiter = delimiterOf(text)
  const records = parse(text, { bom: true, delimiter, skip_empty_lines: true, relax_quotes: true }) as string[][]
  const rows: Row[] = []
  for (const record of records) {
    if (columns.length === 0) columns = record.map((column) => column.trim())
    else rows.push(new Map(columns.map((column, nth) => [column, record[nth]])))
  }
  const twice = columns.find((name, nth) => columns.indexOf(name) !== nth)
  if (twice !== undefined) throw new Error(`The header has the column "${twice}" twice.`)
  if (rows.length === 0) throw new Error('The file has no rows below its header.')
  if (rows.length > ROWS_MAX)
    throw new Error(
      `The file has ${rows.length.toLocaleString('en')} rows; the maximum of a batch is 50,000. Split the file.`,
    )
  return { columns, rows, delimiter }
}

async function textOf(file: Blob): Promise<string> {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer())
  } catch {
    throw new Error('The file is not UTF-8. Save it as "CSV UTF-8" in the spreadsheet.')
  }
}

/** The most frequent separator of the header. Spreadsheets separate by `;` in countries with a decimal comma. */
function delimiterOf(text: string): string {
  const [line = ''] = text
    .slice(0, HEAD_BYTES)
    .replaceAll(/"[^"]*"/g, '')
    .split(/\r?\n/, 1)
  const counted = [',', ';', '\t'].map((mark) => ({ mark, count: line.split(mark).length }))
  return counted.reduce((best, one) => (one.count > best.count ? one : best)).mark
}

export const CHAT = '/v1/chat/completions'
const CHARS_PER_TOKEN = 4
/** Maximum number of columns that are listed below the prompt and in an error. */
export const COLUMNS_SHOWN = 20

export interface Task {
  readonly model: string
  /** Prompt with columns in braces, such as `Classify: {review}`. */
  readonly prompt: string
  readonly system: string
  /** Allowed answers, separated by commas. */
  readonly choices: string
  readonly maxTokens: string
  readonly temperature: string
}

export const NO_TASK: Task = { model: '', prompt: '', system: '', choices: '', maxTokens: '', temperature: '' }

/** Returns the prompts that are not empty, each with the number of its row. The rows have the same numbers in `sluice batch`. */
export function promptsOf({ rows }: Table, { prompt }: Task): { readonly row: number; readonly text: string }[] {
  const pieces = promptPieces(prompt)
  return rows.flatMap((cells, nth) => {
    const text = promptOf(cells, pieces)
    return text === undefined ? [] : [{ row: nth + 1, text }]
  })
}

/** Returns the problem of a task: a prompt without columns or with an unknown column, or too long choices. Empty for a valid task. */
export function problemOf({ columns }: Table, task: Task): string {
  const { prompt } = task
  const used = promptColumns(promptPieces(prompt))
  const unknown = used.find((name) => !columns.includes(name))
  if (unknown !== undefined) {
    const names = columns.slice(0, COLUMNS_SHOWN).join(', ')
    return `The table has no column '${unknown}'. The columns are: ${names}${columns.length > COLUMNS_SHOWN ? ', …' : ''}. For a literal {, write {{.`
  }
  if (used.length === 0) return `The prompt must contain a column in braces, such as {${columns[0]}}.`
  // Without its choices, the batch would have JSON as answers, and would not check them.
  const isKept = !choicesOf(task) || 'choices' in JSON.parse(formText(formOf(task)))
  return isKept ? '' : 'The allowed answers are too long. Use shorter or fewer ones, at most 400 characters together.'
}

/** The prompts of a table, and the estimated tokens and cost of their requests. */
interface Estimate {
  readonly prompts: ReturnType<typeof promptsOf>
  readonly empty: number
  readonly inputTokens: number
  /** Undefined for a model without a price. */
  readonly usd: number | undefined
}

export function estimateOf(table: Table, task: Task, model: Model | undefined): Estimate {
  const prompts = promptsOf(table, task)
  const { messages, response_format } = bodiesOf(task, model?.capabilities.includes('json') ?? true)('')
  const format = response_format ? JSON.stringify(response_format.json_schema.schema).length : 0
  const each = messages.reduce((sum, { content }) => sum + content.length, format)
  const inputTokens = Math.ceil(prompts.reduce((sum, { text }) => sum + text.length + each, 0) / CHARS_PER_TOKEN)
  const price = model?.price
  const usd = price && (inputTokens * price.input_per_million) / 1e6 + prompts.length * price.per_call
  return { prompts, empty: table.rows.length - prompts.length, inputTokens, usd }
}

export function estimateText({ prompts, empty, inputTokens, usd }: Estimate): string {
  return [
    requestsText(prompts.length),
    empty > 0 && `${empty.toLocaleString('en')} without a prompt`,
    `about ${inputTokens.toLocaleString('en')} input tokens`,
    usd !== undefined && `about ${usdText(usd)} plus the price of the output tokens`,
  ]
    .filter(Boolean)
    .join(', ')
}

export function requestsText(count: number): string {
  return `${count.toLocaleString('en')} ${count === 1 ? 'request' : 'requests'}`
}

function choicesOf({ choices }: Task): readonly string[] | undefined {
  const words = choices.split(',').flatMap((word) => word.trim() || [])
  return words.length > 0 ? words : undefined
}

export function formOf(task: Task): AnswerForm {
  const choices = choicesOf(task)
  return { prompt: promptColumns(promptPieces(task.prompt)), ...(choices && { choices }) }
}

function bodiesOf(task: Task, isJson: boolean) {
  const numberIn = (text: string) => (text === '' ? undefined : Number(text))
  return chatBodies({
    ...{ model: task.model, system: task.system.trim(), choices: choicesOf(task), isJson },
    ...{ maxTokens: numberIn(task.maxTokens), temperature: numberIn(task.temperature) },
  })
}

/** @throws Error for a prompt without columns or with an unknown column */
export function requestsOf(table: Table, task: Task, afterRow: number, isJson: boolean): Blob {
  const problem = problemOf(table, task)
  if (problem !== '') throw new Error(problem)
  const bodyWith = bodiesOf(task, isJson)
  const lines = promptsOf(table, task)
    .filter(({ row }) => row > afterRow)
    .map(({ row, text }) => {
      const line = { custom_id: customIdOf(row), method: 'POST', url: CHAT, body: bodyWith(text) }
      return `${JSON.stringify(line)}\n`
    })
  if (lines.length === 0)
    throw new Error(`The prompt is empty in every row (column ${promptColumns(promptPieces(task.prompt)).join(', ')}).`)
  return new Blob(lines)
}
