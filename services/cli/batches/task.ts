/*
 * How a row of a table becomes a request, and how the answer becomes cells.
 *
 * - The prompt is one column, or a template such as `Classify: {review}`.
 * - With choices or a schema, the answer is JSON. A model with structured output is constrained by the schema. Every model
 *   also gets an instruction, and every answer is checked. An invalid answer is an error of its row.
 * - With a column to embed, the request is an embedding and the cell is a vector.
 */

import { z } from 'zod'
import { plain, usageError } from '#services/cli/text/output.ts'
import { ROW_COLUMNS } from '#shared/kinds/batch-row.ts'
import { promptColumnOf, type Row, type Table, unknownColumn } from './input.ts'

export interface TaskOptions {
  readonly model: string
  readonly promptColumn: string | undefined
  /** Template with columns in braces. */
  readonly prompt: string | undefined
  readonly embedColumn: string | undefined
  readonly system: string | undefined
  readonly maxTokens: number | undefined
  readonly temperature: number | undefined
  readonly choices: readonly string[] | undefined
  /** JSON Schema of an object. Each of its properties becomes a column. */
  readonly schema: ObjectSchema | undefined
}

export const ObjectSchema = z.looseObject({
  type: z.literal('object'),
  properties: z.record(z.string(), z.unknown()).refine((properties) => Object.keys(properties).length > 0),
})
export type ObjectSchema = z.infer<typeof ObjectSchema>

/** The cells of an answer, or the problem that makes the answer invalid. */
export type Values = { readonly values: readonly unknown[] } | { readonly problem: string }

/**
 * Describes how a table became requests, and how an answer becomes cells. Stored in the metadata of the batch for
 * `sluice results`.
 */
export const AnswerForm = z.object({
  /** Columns of the input that the prompt uses. A row in which all of these columns are empty has no request. */
  prompt: z.array(z.string()).optional(),
  choices: z.array(z.string()).optional(),
  /** Names of the answer's fields. If `columns` and `vector` are both absent, then the answer is plain text. */
  columns: z.array(z.string()).optional(),
  vector: z.boolean().optional(),
})
export type AnswerForm = z.infer<typeof AnswerForm>

export interface RowTask {
  readonly endpoint: string
  /** Names of the cells of an answer. */
  readonly columns: readonly string[]
  readonly form: AnswerForm
  /** Body of the request. Undefined if the prompt is empty. */
  bodyOf(row: Row): object | undefined
  valuesOf(answer: string): Values
}

/** @param isJson Whether the model supports structured output */
export function taskOf(table: Table, columns: readonly string[], options: TaskOptions, isJson: boolean): RowTask {
  const { model, embedColumn, maxTokens, temperature, choices } = options
  const schema = choices ? choiceSchema(choices) : options.schema
  const answer = { columns: answerColumns(options), valuesOf: valuesOf(choices, options.schema) }
  const formOf = (pieces: readonly Piece[]): AnswerForm => ({
    prompt: pieces.flatMap((piece) => (typeof piece === 'string' ? [] : piece.column)),
    ...(choices && { choices: [...choices] }),
    ...(options.schema && { columns: answer.columns }),
    ...(embedColumn !== undefined && { vector: true }),
  })
  if (embedColumn !== undefined) {
    const pieces = [{ column: embedColumn }]
    const textOf = templateOf(table, columns, pieces)
    const bodyOf = (row: Row) => {
      const input = textOf(row)
      return input === undefined ? undefined : { model, input }
    }
    return { endpoint: '/v1/embeddings', columns: answer.columns, form: formOf(pieces), bodyOf, valuesOf: vectorOf }
  }
  const { prompt, promptColumn } = options
  const pieces = prompt === undefined ? [{ column: promptColumnOf(table, columns, promptColumn) }] : piecesOf(prompt)
  const textOf = templateOf(table, columns, pieces)
  const system = [options.system, instructionOf(choices, schema)].filter((text) => text !== undefined).join('\n\n')
  const settings = {
    ...(maxTokens !== undefined && { max_tokens: maxTokens }),
    ...(temperature !== undefined && { temperature }),
    ...(schema && isJson && { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema } } }),
  }
  const bodyOf = (row: Row) => {
    const content = textOf(row)
    if (content === undefined) return undefined
    const turns = system === '' ? [] : [{ role: 'system', content: system }]
    return { model, messages: [...turns, { role: 'user', content }], ...settings }
  }
  return { endpoint: '/v1/chat/completions', ...answer, form: formOf(pieces), bodyOf }
}

export function answerColumns({ embedColumn, schema }: Pick<TaskOptions, 'embedColumn' | 'schema'>): string[] {
  if (embedColumn !== undefined) return ['embedding']
  return schema ? Object.keys(schema.properties) : ['answer']
}

type Piece = string | { readonly column: string }

/** Splits a template into literal texts and column names. `{{` and `}}` stand for literal braces. */
function piecesOf(template: string): Piece[] {
  const parts = template.match(/\{\{|\}\}|\{[^{}]+\}|[^{}]+|[{}]/g) ?? []
  const pieces = parts.map((part): Piece => {
    if (part === '{{' || part === '}}') return part.slice(1)
    return part.length > 2 && part.startsWith('{') && part.endsWith('}') ? { column: part.slice(1, -1).trim() } : part
  })
  if (pieces.some((piece) => typeof piece !== 'string')) return pieces
  throw usageError("--prompt must contain a column in braces, such as --prompt 'Classify: {review}'.")
}

/**
 * Returns a function that builds the prompt of a row, or returns undefined if all columns in the template are empty.
 * @throws CommandError for an unknown column
 */
function templateOf(table: Table, columns: readonly string[], pieces: readonly Piece[]) {
  for (const piece of pieces) {
    if (typeof piece === 'string' || columns.includes(piece.column)) continue
    throw unknownColumn(table, piece.column, columns, 'Choose one of them. In --prompt, write {{ for a brace.')
  }
  return (row: Row): string | undefined => {
    const texts = pieces.map((piece) => (typeof piece === 'string' ? piece : cellText(row.get(piece.column))))
    const used = pieces.flatMap((piece) => (typeof piece === 'string' ? [] : piece.column))
    return isEmptyRow(row, used) ? undefined : texts.join('')
  }
}

/** Whether each of these columns is empty. */
export function isEmptyRow(row: Row, columns: readonly string[]): boolean {
  return columns.every((column) => cellText(row.get(column)).trim() === '')
}

export function cellText(cell: unknown): string {
  if (typeof cell === 'string') return cell
  return cell === undefined || cell === null ? '' : JSON.stringify(cell)
}

function choiceSchema(choices: readonly string[]): ObjectSchema {
  return objectOf({ answer: { type: 'string', enum: choices } })
}

function objectOf(properties: Readonly<Record<string, unknown>>): ObjectSchema {
  return { type: 'object', properties, required: Object.keys(properties), additionalProperties: false }
}

const TYPES: readonly string[] = ['string', 'number', 'integer', 'boolean']

/** The schema of --columns, such as `sentiment:good|bad,score:number`. @throws CommandError for an invalid column */
export function columnsSchema(columns: readonly string[]): ObjectSchema {
  const properties = columns.map((column) => {
    const at = column.lastIndexOf(':')
    const [name, type] = at < 0 ? [column, 'string'] : [column.slice(0, at).trim(), column.slice(at + 1).trim()]
    if (name !== '' && type.includes('|')) return [name, { type: 'string', enum: type.split('|') }] as const
    if (name !== '' && TYPES.includes(type)) return [name, { type }] as const
    const types = `${TYPES.join(', ')}, or words such as good|bad`
    throw usageError(`--columns must be a list of NAME:TYPE; got '${plain(column)}'.`, `TYPE is ${types}.`)
  })
  checkNames(
    '--columns',
    properties.map(([name]) => name),
  )
  return objectOf(Object.fromEntries(properties))
}

/** Columns that follow the columns of the answer in the output. */
const RESULT_COLUMNS: readonly string[] = ROW_COLUMNS.slice(1)

/** @throws CommandError if two columns of the output would have one name */
export function checkNames(option: string, names: readonly string[]): void {
  const taken = names.find((name) => RESULT_COLUMNS.includes(name))
  if (taken !== undefined) {
    throw usageError(`${option} must not have '${taken}', which is a column of every output.`, 'Choose another name.')
  }
  const twice = names.find((name, nth) => names.indexOf(name) < nth)
  if (twice !== undefined) throw usageError(`${option} has '${plain(twice)}' twice.`, 'Choose another name.')
}

function instructionOf(choices: readonly string[] | undefined, schema: ObjectSchema | undefined): string | undefined {
  if (choices) return `Answer with exactly one of: ${choices.join(', ')}.`
  return schema && `Answer only with a JSON object that matches this JSON Schema: ${JSON.stringify(schema)}`
}

const SHOWN_CHARS = 200

function valuesOf(choices: readonly string[] | undefined, schema: ObjectSchema | undefined) {
  if (choices) return choiceOf(choices)
  if (!schema) return textValues
  return fieldsOf(Object.keys(schema.properties), checkerOf(schema))
}

/**
 * Returns a function that converts an answer of a batch to cells, according to the metadata of the batch. Answers are
 * not checked against a schema.
 */
export function valuesIn({ choices, columns, vector }: AnswerForm): (answer: string) => Values {
  if (choices) return choiceOf(choices)
  if (vector) return vectorOf
  return columns ? fieldsOf(columns) : textValues
}

const textValues = (answer: string): Values => ({ values: [answer] })
const vectorOf = (text: string): Values => ({ values: [jsonIn(text) ?? text] })
const shown = (answer: string) => plain(answer.slice(0, SHOWN_CHARS))

function choiceOf(choices: readonly string[]) {
  const normalised = new Map(choices.toReversed().map((choice) => [normal(choice), choice]))
  return (answer: string): Values => {
    const said = (jsonIn(answer) as { answer?: unknown } | null | undefined)?.answer ?? answer
    const choice = normalised.get(normal(cellText(said)))
    return choice === undefined
      ? { problem: `The answer is not one of the choices: ${shown(answer)}` }
      : { values: [choice] }
  }
}

function fieldsOf(names: readonly string[], checker: z.ZodType = z.looseObject({})) {
  return (answer: string): Values => {
    const value = jsonIn(answer)
    const { data, error } = checker.safeParse(value)
    if (value === undefined) return { problem: `The answer is not JSON: ${shown(answer)}` }
    if (error) return { problem: `The answer does not match the schema (${z.prettifyError(error)}): ${shown(answer)}` }
    const fields = new Map(Object.entries(data as object))
    return { values: names.map((name) => fields.get(name) ?? null) }
  }
}

/** @throws CommandError for an unsupported schema */
export function checkerOf(schema: ObjectSchema): z.ZodType {
  try {
    return z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0])
  } catch (error) {
    throw usageError(`--schema is not supported: ${plain((error as Error).message)}`)
  }
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
  try {
    return JSON.parse(isFenced ? text.slice(FENCE.length, -FENCE.length).replace(/^json\s/, '') : text)
  } catch {
    return undefined
  }
}
