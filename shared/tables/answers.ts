/*
 * The cells of a table row that are filled from the answer to the row's request. `sluice batch` writes these cells to its output. Later, `sluice
 * results` and the console compute the same cells from the {@link AnswerForm} in the metadata of the batch.
 */

/** The cells of a row by column. A map, because a column may be named `__proto__`. */
export type Row = ReadonlyMap<string, unknown>

/** The cells of an answer, or the problem that makes the answer invalid. */
export type Values = { readonly values: readonly unknown[] } | { readonly problem: string }
export type ValuesOf = (answer: string) => Values

/** Key in the metadata of a batch: the id of the uploaded table from which the batch was made. */
export const TABLE_FILE_KEY = 'sluice_table_file'
/** Key in the metadata of a batch: the id of the earlier batch whose failed, changed or new requests this batch runs. */
export const RETRY_OF_KEY = 'sluice_retry_of'
/** Key in the metadata of a batch: its {@link AnswerForm}. */
export const FORM_KEY = 'sluice_columns'

/**
 * Describes how a table became requests, and how an answer becomes cells. Stored in the metadata of the batch as JSON.
 */
export interface AnswerForm {
  /** Columns of the table that the prompt uses. A row in which all of these columns are empty has no request. */
  readonly prompt?: readonly string[]
  /** Columns of the table in the output, if these are not all columns. */
  readonly shown?: readonly string[]
  /** Number of rows that were read, for a trial with the first rows of the table. */
  readonly rows?: number
  readonly choices?: readonly string[]
  /** Names of the answer's fields. If `columns` and `vector` are both absent, then the answer is plain text. */
  readonly columns?: readonly string[]
  readonly vector?: boolean
}

const METADATA_CHARS_MAX = 512

/** Returns a form as a value of metadata. A form that is too long is stored without its column names, so that its results are plain text. */
export function formText(form: AnswerForm): string {
  const forms = [form, { ...form, prompt: undefined }, { rows: form.rows }].map((one) => JSON.stringify(one))
  return forms.find(({ length }) => length <= METADATA_CHARS_MAX) ?? '{}'
}

/** Part of a prompt: a literal text, or the cell of a column. */
export type PromptPiece = string | { readonly column: string }

/** Splits a prompt such as `Classify: {review}` into texts and columns. `{{` and `}}` stand for literal braces. */
export function promptPieces(template: string): PromptPiece[] {
  const parts = template.match(/\{\{|\}\}|\{[^{}]+\}|[^{}]+|[{}]/g) ?? []
  return parts.map((part): PromptPiece => {
    if (part === '{{' || part === '}}') return part.slice(1)
    return part.length > 2 && part.startsWith('{') && part.endsWith('}') ? { column: part.slice(1, -1).trim() } : part
  })
}

export function promptColumns(pieces: readonly PromptPiece[]): string[] {
  return pieces.flatMap((piece) => (typeof piece === 'string' ? [] : piece.column))
}

/** Returns the prompt of a row. Undefined if all columns of the prompt are empty. */
export function promptOf(row: Row, pieces: readonly PromptPiece[]): string | undefined {
  if (isEmptyRow(row, promptColumns(pieces))) return undefined
  return pieces.map((piece) => (typeof piece === 'string' ? piece : cellText(row.get(piece.column)))).join('')
}

/** Settings of the chat requests of all rows. */
export interface ChatTask {
  readonly model: string
  readonly system?: string | undefined
  /** Allowed answers. */
  readonly choices?: readonly string[] | undefined
  /** JSON Schema of the answers, for a task without choices. */
  readonly schema?: object | undefined
  /** Whether the model supports structured output. */
  readonly isJson: boolean
  readonly maxTokens?: number | undefined
  readonly temperature?: number | undefined
}

/**
 * Returns a function from the prompt of a row to the body of its request. With choices or a schema, the answer is JSON. A model with structured
 * output is constrained by the schema, and every model also gets an instruction.
 */
export function chatBodies({ model, choices, isJson, maxTokens, temperature, ...task }: ChatTask) {
  const schema = choices ? objectOf({ answer: { type: 'string', enum: choices } }) : task.schema
  const system = [task.system, instructionOf(choices, schema)].filter(Boolean).join('\n\n')
  const turns = system === '' ? [] : [{ role: 'system', content: system }]
  const settings = {
    ...(maxTokens !== undefined && { max_tokens: maxTokens }),
    ...(temperature !== undefined && { temperature }),
    ...(schema && isJson && { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } }),
  }
  return (content: string) => ({ model, messages: [...turns, { role: 'user', content }], ...settings })
}

/** JSON Schema of an object with these properties and no others. */
export function objectOf(properties: Readonly<Record<string, unknown>>) {
  return { type: 'object' as const, properties, required: Object.keys(properties), additionalProperties: false }
}

function instructionOf(choices: readonly string[] | undefined, schema: object | undefined): string | undefined {
  if (choices) return `Answer with exactly one of: ${choices.join(', ')}.`
  return schema && `Answer only with a JSON object that matches this JSON Schema: ${JSON.stringify(schema)}`
}

/** Tokens and cost of several batches together. Null if a batch has none, for example because its model has no price. */
export function usedBy(batches: readonly UsedByBatch[]): Required<UsedByBatch> {
  const usages = batches.flatMap(({ usage }) => usage ?? [])
  const costs = batches.flatMap(({ cost_usd }) => cost_usd ?? [])
  const sumOf = (name: 'input_tokens' | 'output_tokens') => usages.reduce((sum, usage) => sum + usage[name], 0)
  const usage = { input_tokens: sumOf('input_tokens'), output_tokens: sumOf('output_tokens') }
  return {
    usage: usages.length === batches.length ? usage : null,
    cost_usd: costs.length === batches.length ? costs.reduce((sum, cost) => sum + cost, 0) : null,
  }
}

interface UsedByBatch {
  readonly usage?: { readonly input_tokens: number; readonly output_tokens: number } | null | undefined
  readonly cost_usd?: number | null | undefined
}

/** Names of the cells of a result, in order. */
export const ROW_COLUMNS = ['answer', 'error', 'finish_reason', 'input_tokens', 'output_tokens'] as const

/** Text of a result, before the text becomes the cells of an {@link AnswerForm}. */
export interface Result extends Omit<Cells, 'values' | 'invalidAnswer'> {
  readonly answer: string
}

export interface Cells {
  readonly values: readonly unknown[]
  readonly error: string
  /** Whole text of an answer with the error {@link INVALID_ANSWER}. */
  readonly invalidAnswer?: string
  readonly finishReason: string
  readonly inputTokens: number | null
  readonly outputTokens: number | null
}

const NO_ANSWER = { values: [], finishReason: '', inputTokens: null, outputTokens: null }
export const EMPTY_PROMPT: Cells = {
  ...NO_ANSWER,
  error: 'empty_prompt: The prompt is empty, so no request was sent.',
}
export const NO_RESULT: Cells = { ...NO_ANSWER, error: 'no_result: The batch has no result for this row.' }

/**
 * Error code of an answer that is none of the choices of its table, or that does not have the fields of its columns. Also the name of the column
 * with the text of such an answer.
 */
export const INVALID_ANSWER = 'invalid_answer'

const CUT: ReadonlySet<string> = new Set(['length', 'max_tokens', 'max_output_tokens'])

export function isCut({ finishReason }: Pick<Cells, 'finishReason'>): boolean {
  return CUT.has(finishReason)
}

/** Returns the custom id of the request of a row. @param row Number of the row, from 1. The header does not count */
export function customIdOf(row: number): string {
  return `row-${row}`
}

/** Inverse of {@link customIdOf}. Undefined for any other custom id. */
export function rowNumberOf(customId: string): number | undefined {
  const [, digits] = /^row-(\d+)$/.exec(customId) ?? []
  return digits === undefined ? undefined : Number(digits)
}

/** Whether all given columns of a row are empty. White space does not count. */
export function isEmptyRow(row: Row, columns: readonly string[]): boolean {
  return columns.every((column) => cellText(row.get(column)).trim() === '')
}

export function cellText(cell: unknown): string {
  if (typeof cell === 'string') return cell
  return cell === undefined || cell === null ? '' : JSON.stringify(cell)
}

export function cellsOf(row: Result, valuesOf: ValuesOf): Cells {
  const { answer, error, finishReason, inputTokens, outputTokens } = row
  const rest = { finishReason, inputTokens, outputTokens }
  if (error !== '') return { ...rest, values: [], error }
  const result = valuesOf(answer)
  if ('values' in result) return { ...rest, values: result.values, error: '' }
  const advice = isCut(row) ? 'The answer was truncated. Use a higher --max-tokens. ' : ''
  return { ...rest, values: [], error: `${INVALID_ANSWER}: ${advice}${result.problem}`, invalidAnswer: answer }
}

/** Returns the {@link AnswerForm} in the metadata of a batch. A batch without this metadata has plain text as its answers. */
export function formIn(json: string | undefined): AnswerForm {
  const form = jsonOf(json ?? '{}')
  if (typeof form !== 'object' || form === null) return {}
  // The values are checked, because any client may write the metadata of a batch.
  const { prompt, shown, rows, choices, columns, vector } = form as Readonly<Record<string, unknown>>
  return {
    ...(isNames(prompt) && { prompt }),
    ...(isNames(shown) && { shown }),
    ...(typeof rows === 'number' && { rows }),
    ...(isNames(choices) && { choices }),
    ...(isNames(columns) && { columns }),
    ...(vector === true && { vector }),
  }
}

function isNames(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((name) => typeof name === 'string')
}

/** Names of the output columns that one answer fills, such as `sentiment` and `score`. */
function answerColumns({ columns, vector }: AnswerForm): readonly string[] {
  return columns ?? [vector ? 'embedding' : 'answer']
}

/** Whether an answer may be invalid, so that the output of the table has the column {@link INVALID_ANSWER}. */
function isChecked({ choices, columns }: AnswerForm): boolean {
  return choices !== undefined || columns !== undefined
}

/** Names of the cells that follow the columns of a table in its output. */
export function resultColumns(form: AnswerForm): readonly string[] {
  return [...answerColumns(form), ...ROW_COLUMNS.slice(1), ...(isChecked(form) ? [INVALID_ANSWER] : [])]
}

/** The cells of the {@link resultColumns}. */
export function resultCells(form: AnswerForm, cells: Cells): readonly unknown[] {
  const { values, error, finishReason, inputTokens, outputTokens, invalidAnswer = '' } = cells
  const answer = answerColumns(form).map((_, nth) => values[nth] ?? '')
  return [...answer, error, finishReason, inputTokens, outputTokens, ...(isChecked(form) ? [invalidAnswer] : [])]
}

/** Returns a function that converts an answer to cells. Answers are not checked against a schema. */
export function valuesIn({ choices, columns, vector }: AnswerForm): ValuesOf {
  if (choices) return choiceOf(choices)
  if (vector) return vectorOf
  return columns ? fieldsOf(columns) : textValues
}

const SHOWN_CHARS = 200

const shown = (answer: string) => answer.slice(0, SHOWN_CHARS).replaceAll(/\s+/g, ' ').trim()
const textValues: ValuesOf = (answer) => ({ values: [answer] })
const vectorOf: ValuesOf = (text) => ({ values: [jsonIn(text) ?? text] })

function choiceOf(choices: readonly string[]): ValuesOf {
  const normalised = new Map(choices.toReversed().map((choice) => [normal(choice), choice]))
  return (answer) => {
    const said = (jsonIn(answer) as { answer?: unknown } | null | undefined)?.answer ?? answer
    const choice = normalised.get(normal(cellText(said)))
    return choice === undefined
      ? { problem: `The answer is not one of the choices: ${shown(answer)}` }
      : { values: [choice] }
  }
}

/** @param problemOf Returns the problem of an answer that does not match the schema, otherwise undefined */
export function fieldsOf(
  names: readonly string[],
  problemOf: (value: unknown) => string | undefined = problemOfObject,
): ValuesOf {
  return (answer) => {
    const value = jsonIn(answer)
    if (value === undefined) return { problem: `The answer is not JSON: ${shown(answer)}` }
    const problem = problemOf(value)
    if (problem !== undefined) {
      return { problem: `The answer does not match the schema (${problem}): ${shown(answer)}` }
    }
    const fields = new Map(Object.entries(value as object))
    return { values: names.map((name) => fields.get(name) ?? null) }
  }
}

function problemOfObject(value: unknown): string | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? undefined : 'expected an object'
}

/**
 * Removes case, quotes and final punctuation. A model without structured output may add them to a choice, such as
 * `"Good."` instead of `good`.
 */
function normal(text: string): string {
  const trimmed = text.trim()
  let [start, end] = [0, trimmed.length]
  while (start < end && MARKS.includes(trimmed.charAt(start))) start++
  while (end > start && `${MARKS}.!`.includes(trimmed.charAt(end - 1))) end--
  return trimmed.slice(start, end).toLowerCase()
}

const MARKS = '"\'`*'
const FENCE = '```'

/** Returns the JSON value in an answer, which may be enclosed in a fenced block of Markdown. */
function jsonIn(answer: string): unknown {
  const text = answer.trim()
  const isFenced = text.length > FENCE.length && text.startsWith(FENCE) && text.endsWith(FENCE)
  return jsonOf(isFenced ? text.slice(FENCE.length, -FENCE.length).replace(/^json\s/, '') : text)
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Counts of the results of a table, and the advice after a trial with its first rows. */
export class RowCounts {
  answered = 0
  failed = 0
  /** Number of rows in {@link failed} whose answer does not match the choices or the columns. */
  invalid = 0
  /** Number of rows without a prompt, which have no request. */
  skipped = 0
  /** Number of truncated results, whose answers reached the maximum of output tokens. */
  cut = 0
  /** Output tokens of the longest result that is counted in {@link cut}. */
  cutTokens = 0
  /** Error of the first row in {@link failed} without an answer, and the first invalid answer. */
  #firstError = ''
  #firstInvalid = ''

  add(cells: Cells): void {
    const { error, invalidAnswer, outputTokens } = cells
    if (isCut(cells)) {
      this.cut++
      this.cutTokens = Math.max(this.cutTokens, outputTokens ?? 0)
    }
    if (cells === EMPTY_PROMPT) this.skipped++
    else if (error === '') this.answered++
    else {
      this.failed++
      if (invalidAnswer !== undefined) this.invalid++
      if (invalidAnswer === undefined) this.#firstError ||= error
      else this.#firstInvalid ||= invalidAnswer
    }
  }

  /** Whether no request has an answer, so that a trial shows neither the quality nor the cost of the answers. */
  get hasNoAnswer(): boolean {
    return this.answered + this.invalid === 0
  }

  /**
   * Returns the most frequent problem of a trial with its remedy. Empty if most rows have a valid answer.
   *
   * @param limit Name of the setting for the maximum output tokens
   */
  advice(limit: string): string {
    const { answered, failed, invalid, cut } = this
    const total = answered + failed
    const isMost = (count: number) => count > 0 && count * 2 >= total
    const of = (count: number) => (count === total ? allText(total) : `${count} of ${rowsText(total)}`)
    if (isMost(failed - invalid)) {
      const [code = ''] = this.#firstError.split(':', 1)
      const [cause, remedy] = OF_SERVER.test(code)
        ? ['The model fails', 'Try later or use another model.']
        : ['The requests fail', 'First correct the cause.']
      const isTried = this.hasNoAnswer ? '; the prompt was not tried' : ''
      return `${cause}${isTried}. ${remedy} ${of(failed - invalid)} failed, such as: ${beginning(this.#firstError)}`
    }
    if (isMost(cut)) return `${of(cut)} had an answer that was cut at ${this.cutTokens} tokens. Raise ${limit}.`
    if (!isMost(invalid)) return ''
    const example = `such as '${beginning(this.#firstInvalid)}'`
    return `${of(invalid)} had an invalid answer, ${example}. First correct the prompt or the allowed answers.`
  }
}

const EXAMPLE_CHARS = 100
/** Error codes whose cause is the model, its servers or the service, and not the request. */
const OF_SERVER =
  /^(upstream_|model_loading|overloaded|internal_error|worker_lost|timeout|job_expired|rate_limit|token_limit)/

function beginning(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ').trim()
  return line.length > EXAMPLE_CHARS ? `${line.slice(0, EXAMPLE_CHARS)}…` : line
}

export function rowsText(count: number): string {
  return `${count} ${count === 1 ? 'row' : 'rows'}`
}

export function allText(count: number): string {
  return count === 1 ? 'The row' : `All ${rowsText(count)}`
}
