import { open, readFile } from 'node:fs/promises'
import { basename } from 'node:path'
import { CreateBatch } from '#schemas/batches/batch.ts'
import { batchSummary, failedRows, usageTexts } from '#services/cli/client/batch-text.ts'
import { BatchesApi, type BatchView } from '#services/cli/client/http.ts'
import { endedAt } from '#services/cli/client/job.ts'
import { type Command, type Invocation, onlyArgument, type Values } from '#services/cli/commands/command.ts'
import { followBatch } from '#services/cli/commands/following.ts'
import { metadataOf, metadataWith } from '#services/cli/commands/submit.ts'
import {
  CommandError,
  coloured,
  EXIT,
  type ExitCode,
  fileError,
  plain,
  printable,
  usageError,
} from '#services/cli/text/output.ts'
import { RETRY_OF_KEY, usedBy } from '#shared/tables/answers.ts'
import { ROWS_MAX, RunFiles, selectRequests } from './convert.ts'
import { ENDED } from './follow-table.ts'
import { findTable, rowsOf, type Table } from './input.ts'
import { problemsOf, runTable, type TableOptions, type TableResult } from './table-run.ts'
import { checkerOf, checkNames, columnsSchema, ObjectSchema } from './task.ts'
import { outPathOf } from './write.ts'

const WINDOW = '24h'
/** Maximum bytes of the file that are read to find the endpoint in its first line. */
const HEAD_BYTES = 256 * 1024

/** Options that only tables of prompts accept. A file of requests must not be combined with them. */
const TABLE_OPTIONS = {
  model: { type: 'string' },
  'prompt-column': { type: 'string' },
  prompt: { type: 'string' },
  'embed-column': { type: 'string' },
  system: { type: 'string' },
  choices: { type: 'string' },
  columns: { type: 'string' },
  schema: { type: 'string' },
  'max-tokens': { type: 'string' },
  temperature: { type: 'string' },
  out: { type: 'string' },
  bom: { type: 'boolean' },
  limit: { type: 'string' },
  new: { type: 'boolean' },
  strict: { type: 'boolean' },
  'cancel-on-interrupt': { type: 'boolean' },
} as const
/** Groups of options that exclude each other: at most one option of each group may be given. */
const EXCLUSIVE = [
  ['prompt', 'prompt-column', 'embed-column'],
  ['choices', 'columns', 'schema', 'embed-column'],
  ['system', 'embed-column'],
  ['max-tokens', 'embed-column'],
  ['temperature', 'embed-column'],
  ['new', 'retry-failed'],
  ['limit', 'retry-failed'],
] as const

export const batch: Command = {
  summary: 'Run the rows of a table, or a file of requests, as a batch',
  help: `Usage: sluice batch TABLE --model ID [--prompt-column NAME | --prompt TEXT] [--out FILE] [options]
       sluice batch REQUESTS.jsonl [--follow] [options]
       sluice batch BATCH --retry-failed

With --model, sends each row of a table as one request and follows the batch. The output has one row per input row, in input
order: the columns of the input, then answer, error, finish_reason, input_tokens and output_tokens. TABLE is a .csv, .tsv or
.jsonl file with up to ${ROWS_MAX} rows, or a directory with one text per file. Ctrl-C leaves the batch running. If the command is
repeated with equal rows, then it finds this batch and writes its output. If rows were changed or added, then only these rows and
failed rows run. The exit code is 0 if the batch completed and any row has an answer, and 3 if the batch was cancelled. Without an
answer, or if the batch failed or expired, the exit code is 1. After Ctrl-C, the exit code is 130.

Without --model, uploads a file with one request per line. With --follow the exit code is 0 if every request finished, 1 if the
batch failed or expired, and 3 if it was cancelled. In a pipe the first line is the batch with its id; with --follow the events
come after it.

Options:
  --model ID            model of all rows
  --prompt-column NAME  column with the prompts (default: prompt, or the only column)
  --prompt TEXT         prompt with columns in braces, such as 'Classify: {review}'; write {{ for a literal {
  --system TEXT         system message of all rows
  --choices LIST        allow only these answers, such as positive,negative
  --columns LIST        write fields of the answer to columns of these types: sentiment:good|bad,score:number
  --schema FILE         like --columns, with the fields in a JSON Schema of an object
  --embed-column NAME   instead of a prompt: compute a vector of each cell of this column, and write it to the new
                        column embedding
  --max-tokens N        maximum output tokens per row
  --temperature X       sampling temperature, such as 0
  --out FILE            .csv, .tsv or .jsonl file to write (default: next to TABLE, such as prompts.answers.csv)
  --bom                 begin a CSV or TSV file with a byte order mark, for Excel (default: if TABLE has one)
  --retry-failed        run again only the rows without an answer, even if the table has not changed.
                        With a BATCH: run its failed requests again, as a new batch
  --limit N             trial: run only the first N rows; the command without --limit then runs the other rows
  --new                 run the rows again, even if a batch of the same rows exists
  --strict              exit with code 1 if any row failed
  --cancel-on-interrupt
                        on Ctrl-C, cancel the batch and write the answers so far
  --endpoint PATH       without --model: endpoint of the requests (default: the url of the first line)
  --window DURATION     time limit for the whole batch, such as 90m or 24h (default ${WINDOW})
  --metadata KEY=VALUE  attach metadata to the batch; repeatable (default: name=FILE)
  --follow              without --model: show progress until the batch has finished

Examples:
  sluice batch prompts.csv --model smollm2-135m-instruct --prompt-column question --out answers.csv
  sluice batch reviews.csv --model smollm2-135m-instruct --prompt 'Classify: {review}' --choices positive,negative
  sluice batch reviews.csv --model all-minilm-l6-v2 --embed-column review --out vectors.csv
  sluice batch letters/ --model smollm2-135m-instruct --system 'Summarize the letter.'
  sluice batch requests.jsonl --follow
  sluice results $(sluice batch requests.jsonl --window 2h | jq -r .id) > answers.jsonl`,
  options: {
    ...TABLE_OPTIONS,
    'retry-failed': { type: 'boolean' },
    endpoint: { type: 'string' },
    window: { type: 'string' },
    metadata: { type: 'string', multiple: true },
    follow: { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args } = invocation
    const path = onlyArgument(args, 'FILE')
    const model = values.text('model')
    if (model === undefined && values.has('retry-failed')) return await retryBatch(invocation, path)
    const table = await findTable(path)
    if (model !== undefined) {
      if (!table) throw usageError(`${path} must be a .csv, .tsv or .jsonl file, or a directory of text files.`)
      const misplaced = ['endpoint', 'follow'].find((name) => values.given().includes(name))
      if (misplaced !== undefined)
        throw usageError(`--${misplaced} applies only to a file of requests, without --model.`)
      const options = await optionsOf(values, table, model)
      const rowsMax = values.count('limit', 1, ROWS_MAX)
      const hasMark = table.hasMark || values.has('bom')
      const result = await runTable(invocation, { ...table, rowsMax, hasMark }, options)
      const exit = await report(invocation, options, result)
      if (rowsMax !== undefined) invocation.out.note(await trialText(invocation, table, rowsMax, result))
      return exit
    }
    const misplaced = Object.keys(TABLE_OPTIONS).find((name) => values.given().includes(name))
    if (misplaced !== undefined || (table && table.format !== 'jsonl')) {
      const next =
        'Choose the model of the rows with --model, such as --model echo-1. To list the models: sluice models'
      throw usageError(`${path} is a table of prompts, and --model is missing.`, next)
    }
    return await runRequests(invocation, path)
  },
}

async function optionsOf(values: Values, table: Table, model: string): Promise<TableOptions> {
  for (const names of EXCLUSIVE) {
    const [first, second] = names.filter((name) => values.given().includes(name))
    if (second !== undefined) throw usageError(`Use either --${first} or --${second}, not both.`)
  }
  const asked = values.text('temperature')
  const temperature = asked === undefined ? undefined : Number(asked)
  if (temperature !== undefined && !(asked?.trim() && temperature >= 0 && temperature <= 2)) {
    throw usageError(`--temperature must be a number from 0 to 2; got '${asked}'.`)
  }
  const columns = values.parts('columns')
  return {
    ...{ model, temperature },
    promptColumn: values.text('prompt-column'),
    prompt: values.text('prompt'),
    embedColumn: values.text('embed-column'),
    system: values.text('system'),
    maxTokens: values.count('max-tokens', 1, 1_000_000),
    choices: values.parts('choices'),
    schema: columns ? columnsSchema(columns) : await schemaIn(values.text('schema')),
    out: await outPathOf(table, values.text('out')),
    window: windowOf(values),
    metadata: metadataOf(values.list('metadata')),
  }
}

/**
 * Returns the value of `--window`: the time in which the batch must end, such as `24h`. Called before the upload, so that an invalid value
 * is reported first.
 *
 * @throws CommandError for an invalid duration
 */
function windowOf(values: Values): string {
  const text = values.text('window') ?? WINDOW
  if (CreateBatch.shape.completion_window.safeParse(text).success) return text
  throw usageError(`--window must be a number of seconds, minutes or hours, such as 90m or 24h; got '${text}'.`)
}

async function schemaIn(path: string | undefined): Promise<ObjectSchema | undefined> {
  if (path === undefined) return undefined
  const text = await readFile(path, 'utf8').catch((error: Error) => {
    throw fileError(path, error)
  })
  const schema = parsedSchema(text)
  if (!schema) throw usageError(`--schema ${path} must be the JSON Schema of an object with properties.`)
  checkerOf(schema)
  checkNames('--schema', Object.keys(schema.properties))
  return schema
}

function parsedSchema(text: string): ObjectSchema | undefined {
  try {
    return ObjectSchema.safeParse(JSON.parse(text)).data
  } catch {
    return undefined
  }
}

async function report(
  { values, out }: Invocation,
  options: TableOptions,
  { batch, written, sources }: TableResult,
): Promise<ExitCode> {
  const { id, status } = batch
  const { answered, failed, skipped, cut, failures } = written
  if (!out.isHumanReadable) {
    const reasons = [...failures.byCode].map(([code, failure]) => ({ code, ...failure }))
    const more = { seconds: (endedAt(batch) ?? batch.created_at) - batch.created_at, ...usedBy(sources) }
    await out.json({ batch: id, status, out: options.out, answered, failed, skipped, cut, failures: reasons, ...more })
  } else {
    const { invalid } = written
    const text = [
      `${plain(options.out)}: ${answered} answers`,
      ...(failed > invalid ? [`${failed - invalid} failed (column error)`] : []),
      ...(invalid > 0 ? [`${invalid} with an invalid answer (column error)`] : []),
      ...(skipped > 0 ? [`${skipped} skipped (empty prompt)`] : []),
    ].join(', ')
    const state = status === 'completed' ? '' : `; the batch is ${plain(status)}`
    await out.write(`${coloured(failed > 0 ? 'yellow' : 'green', `${text}${state}`)}\n`)
  }
  for (const line of failures.lines()) out.note(line)
  if (cut > 0) {
    const limit = options.maxTokens ?? written.cutTokens
    out.note(
      `${cut} answers were cut at ${limit} tokens (column finish_reason). For longer answers: repeat the command with a larger --max-tokens`,
    )
  }
  out.note(`${id} ${batchSummary(batch)}`)
  if (sources.length > 1) {
    out.note(
      [
        `In total, with earlier runs: ${answered} answers from ${sources.length} batches`,
        ...usageTexts(usedBy(sources)),
      ].join(', '),
    )
  }
  if (failed > 0 && values.text('limit') === undefined)
    out.note('To run the rows without a valid answer again: repeat the command with --retry-failed')
  if (failed === 0 && answered > 0) return EXIT.ok
  if (status === 'cancelled') return EXIT.cancelled
  return status === 'completed' && answered > 0 && !values.has('strict') ? EXIT.ok : EXIT.failed
}

/**
 * Returns the message after a trial of the first rows. The message has the most frequent problem, the estimated cost and the next command.
 */
async function trialText(
  { commandLine }: Invocation,
  table: Table,
  rowsMax: number,
  { batch: { cost_usd, request_counts }, written }: TableResult,
): Promise<string> {
  let rows = 0
  for await (const _ of rowsOf(table)) rows++
  const advice = plain(written.advice('--max-tokens'))
  const ofAll = cost_usd == null ? undefined : (cost_usd / Math.max(1, request_counts.total)) * rows
  const cost =
    rows <= rowsMax || ofAll === undefined || written.hasNoAnswer
      ? ''
      : `, and the estimated cost of all rows is $${ofAll.toFixed(4)}`
  const run = `${Math.min(rowsMax, rows)} of ${rows} rows have run${cost}.`
  const again = `To try the same rows again: ${printable(commandLine.text(['--new']))} --new`
  const others = `To run the other rows: ${printable(commandLine.text(['--new'], { '--limit': undefined }))}`
  return [run, advice, written.hasNoAnswer ? again : rows > rowsMax && others].filter(Boolean).join('\n')
}

/** Runs the failed requests of a batch again, as a new batch. */
async function retryBatch(invocation: Invocation, id: string): Promise<ExitCode> {
  const { values, api, out } = invocation
  if (!id.startsWith('batch_')) {
    throw usageError(`With --retry-failed, give the id of a batch, or a table and --model; got '${plain(id)}'.`)
  }
  const misplaced = [...Object.keys(TABLE_OPTIONS), 'endpoint', 'metadata'].find((name) =>
    values.given().includes(name),
  )
  if (misplaced !== undefined) {
    const message = `--${misplaced} cannot change a batch that is retried by its id.`
    throw usageError(message, 'Remove the option, or retry a table with --model and its file.')
  }
  const batches = new BatchesApi(api.http)
  const found = await batches.get(id)
  const { status, input_file_id, endpoint, metadata } = found
  if (status === 'failed') throw new CommandError(EXIT.failed, `${id} failed, so no request ran.`, problemsOf(found))
  if (!ENDED.has(status)) {
    throw new CommandError(EXIT.refused, `${id} has not finished.`, `To follow the batch: sluice follow ${id}`)
  }
  await using files = await RunFiles.open()
  const failed = new Set<string>()
  for await (const { customId } of failedRows(batches, found)) failed.add(customId)
  if (failed.size === 0) {
    out.note(`${id} has no failed requests and no invalid answers.`)
    return EXIT.ok
  }
  const content = await batches.fileContent(input_file_id ?? '').catch((error: Error) => {
    throw new CommandError(EXIT.refused, `The input file of ${id} cannot be read: ${plain(error.message)}`)
  })
  await selectRequests(content.body, files.retry, failed)
  const window = windowOf(values)
  const { sluice_input: _, [RETRY_OF_KEY]: __, ...others } = metadata ?? {}
  const created = await batches.create({
    ...{ input_file_id: await batches.upload(files.retry), endpoint, completion_window: window },
    // The hash of all rows (`sluice_input`) is not copied to the new batch. A repeated command for the table therefore
    // continues the original batch, and adds the answers of the new batch.
    metadata: metadataWith(others, { [RETRY_OF_KEY]: id }),
  })
  const which = found.invalid_answers ? 'the failed ones and those with an invalid answer' : 'the failed ones'
  out.note(
    `The new batch ${created.id} repeats ${failed.size} ${failed.size === 1 ? 'request' : 'requests'} of ${id}: ${which}`,
  )
  return await followCreated(invocation, created)
}

async function runRequests(invocation: Invocation, path: string): Promise<ExitCode> {
  const { values, api, out } = invocation
  const completion_window = windowOf(values)
  const endpoint = values.text('endpoint') ?? (await endpointIn(path))
  const metadata = metadataWith(metadataOf(values.list('metadata')), { name: basename(path) })
  const batches = new BatchesApi(api.http)
  const input_file_id = await batches.upload(path)
  const created = await batches.create({ input_file_id, endpoint, completion_window, metadata })
  if (!values.has('follow')) {
    const next = `To follow the batch: sluice follow ${created.id}`
    if (!out.isHumanReadable) await out.json(created)
    else await out.write(`${coloured('green', created.id)} ${created.status}\n${next}\n`)
    return EXIT.ok
  }
  return await followCreated(invocation, created)
}

async function followCreated(invocation: Invocation, created: BatchView): Promise<ExitCode> {
  const { out } = invocation
  // The batch id is printed here, because later events contain only the id of the job that runs the batch.
  if (out.isHumanReadable) out.note(created.id)
  else await out.json(created)
  return await followBatch(invocation, created.id, 0)
}

async function endpointIn(path: string): Promise<string> {
  const file = await open(path).catch((error: Error) => {
    throw fileError(path, error)
  })
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0)
    const [line = ''] = buffer.toString('utf8', 0, bytesRead).trimStart().split('\n')
    if (!line.startsWith('{')) throw usageError(`${path}: the first line is not a request.`, FORMAT_HINT)
    const { url } = JSON.parse(line) as { url?: unknown }
    if (typeof url === 'string') return url
  } catch (error) {
    // A first line longer than HEAD_BYTES is read only in part, so JSON.parse fails. The error after this block then asks for --endpoint.
    if (!(error instanceof SyntaxError)) throw error
  } finally {
    await file.close()
  }
  throw usageError(
    `${path}: the endpoint is unknown, because the first line has no url.`,
    'Set the endpoint with --endpoint.',
  )
}

/** Remedy if the first line is not a JSON object. The file then probably has another format, which the option --endpoint cannot correct. */
const FORMAT_HINT =
  'Each line must be a JSON object with custom_id, method, url and body. For rows of prompts use .csv, .tsv or .jsonl with --model.'
