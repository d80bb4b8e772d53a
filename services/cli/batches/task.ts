/*
 * Converts each row of a table to a request, and each answer to cells of the output.
 *
 * - The prompt is one column, or a template such as `Classify: {review}`.
 * - With choices or a schema, the answer is JSON, and every answer is checked. An invalid answer is an error of its row.
 * - With a column to embed, the request is an embedding and the cell is a vector.
 */

import { z } from 'zod'
import { plain, usageError } from '#services/cli/text/output.ts'
import {
  type AnswerForm,
  chatBodies,
  fieldsOf,
  INVALID_ANSWER,
  objectOf,
  type PromptPiece,
  promptColumns,
  promptOf,
  promptPieces,
  ROW_COLUMNS,
  type Row,
  type ValuesOf,
  valuesIn,
} from '#shared/tables/answers.ts'
import { promptColumnOf, type Table, unknownColumn } from './input.ts'

export interface TaskOptions {
  readonly model: string
  readonly promptColumn: string | undefined
  /** Template of the prompt with column names in braces, such as `Classify: {review}`. */
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

export interface RowTask {
  readonly endpoint: string
  readonly form: AnswerForm
  /** Body of the request. Undefined if the prompt is empty. */
  bodyOf(row: Row): object | undefined
  readonly valuesOf: ValuesOf
}

/** @param isJson Whether the model supports structured output */
export function taskOf(table: Table, columns: readonly string[], options: TaskOptions, isJson: boolean): RowTask {
  const { model, embedColumn, choices } = options
  const names = options.schema && Object.keys(options.schema.properties)
  const formOf = (pieces: readonly PromptPiece[]): AnswerForm => ({
    prompt: promptColumns(pieces),
    ...(table.format === 'directory' && { shown: ['file'] }),
    ...(table.rowsMax !== undefined && { rows: table.rowsMax }),
    ...(choices && { choices: [...choices] }),
    ...(names && { columns: names }),
    ...(embedColumn !== undefined && { vector: true }),
  })
  if (embedColumn !== undefined) {
    const pieces = [{ column: embedColumn }]
    const textOf = templateOf(table, columns, pieces)
    const bodyOf = (row: Row) => {
      const input = textOf(row)
      return input === undefined ? undefined : { model, input }
    }
    const form = formOf(pieces)
    return { endpoint: '/v1/embeddings', form, bodyOf, valuesOf: valuesIn(form) }
  }
  const { prompt, promptColumn } = options
  const pieces = prompt === undefined ? [{ column: promptColumnOf(table, columns, promptColumn) }] : piecesOf(prompt)
  const textOf = templateOf(table, columns, pieces)
  const bodyWith = chatBodies({ ...options, isJson })
  const bodyOf = (row: Row) => {
    const content = textOf(row)
    return content === undefined ? undefined : bodyWith(content)
  }
  const form = formOf(pieces)
  const valuesOf = names && options.schema ? fieldsOf(names, problemOf(checkerOf(options.schema))) : valuesIn(form)
  return { endpoint: '/v1/chat/completions', form, bodyOf, valuesOf }
}

function piecesOf(template: string): PromptPiece[] {
  const pieces = promptPieces(template)
  if (promptColumns(pieces).length > 0) return pieces
  throw usageError("--prompt must contain a column in braces, such as --prompt 'Classify: {review}'.")
}

/**
 * Returns a function that builds the prompt of a row, or returns undefined if all columns in the template are empty.
 * @throws CommandError for an unknown column
 */
function templateOf(table: Table, columns: readonly string[], pieces: readonly PromptPiece[]) {
  for (const column of promptColumns(pieces)) {
    if (columns.includes(column)) continue
    throw unknownColumn(table, column, columns, 'Choose one of them. In --prompt, write {{ for a literal {.')
  }
  return (row: Row): string | undefined => promptOf(row, pieces)
}

const TYPES: readonly string[] = ['string', 'number', 'integer', 'boolean']

/**
 * Returns the JSON Schema of the answers for a value of `--columns`, such as `sentiment:good|bad,score:number`.
 *
 * @throws CommandError for an invalid column
 */
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

/** Columns of every output: they follow the columns of the answer and contain, for example, the error and the tokens of the row. */
const RESULT_COLUMNS: readonly string[] = [...ROW_COLUMNS.slice(1), INVALID_ANSWER]

/** @throws CommandError if two columns of the output would have the same name */
export function checkNames(option: string, names: readonly string[]): void {
  const taken = names.find((name) => RESULT_COLUMNS.includes(name))
  if (taken !== undefined) {
    throw usageError(`${option} must not have '${taken}', which is a column of every output.`, 'Choose another name.')
  }
  const twice = names.find((name, nth) => names.indexOf(name) < nth)
  if (twice !== undefined) throw usageError(`${option} has '${plain(twice)}' twice.`, 'Choose another name.')
}

function problemOf(checker: z.ZodType) {
  return (value: unknown) => {
    const { error } = checker.safeParse(value)
    return error && z.prettifyError(error)
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
