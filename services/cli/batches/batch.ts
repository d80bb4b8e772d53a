import { open } from 'node:fs/promises'
import { BatchesApi, type BatchView } from '#services/cli/client/http.ts'
import { type Command, type Invocation, onlyArgument, type Values } from '#services/cli/commands/command.ts'
import { followBatch } from '#services/cli/commands/following.ts'
import { metadataOf } from '#services/cli/commands/submit.ts'
import { CommandError, coloured, EXIT, type ExitCode, plain, usageError } from '#services/cli/text/output.ts'
import { BatchProgress } from './follow-table.ts'
import { findTable, type Table } from './input.ts'
import { convertRows, openBatch, outPathOf, ROWS_MAX, RunFiles, type TableOptions, writeOutput } from './table-run.ts'

const WINDOW = '24h'
/** Maximum bytes of the file that are read to find the endpoint in its first line. */
const HEAD_BYTES = 256 * 1024

/** Options for rows of prompts, which a file of requests does not have. */
const TABLE_OPTIONS = {
  model: { type: 'string' },
  'prompt-column': { type: 'string' },
  system: { type: 'string' },
  'max-tokens': { type: 'string' },
  temperature: { type: 'string' },
  out: { type: 'string' },
  new: { type: 'boolean' },
  'cancel-on-interrupt': { type: 'boolean' },
} as const

export const batch: Command = {
  summary: 'Run the rows of a table, or a file of requests, as a batch',
  help: `Usage: sluice batch TABLE --model ID [--prompt-column NAME] [--out FILE] [options]
       sluice batch REQUESTS.jsonl [--follow] [options]

With --model, sends each row of a table as one chat request and follows the batch. The output has one row per input row, in input
order: the columns of the input, then answer, error, input_tokens and output_tokens. TABLE is a .csv, .tsv or .jsonl file with up
to ${ROWS_MAX} rows, or a directory with one text per file. Ctrl-C leaves the batch running. If the command is repeated with equal
rows, then it finds this batch and writes its output. The exit code is 0 if the batch completed and any row has an answer, and 3
if it was cancelled. Without an answer, or if the batch failed or expired, the exit code is 1. After Ctrl-C it is 130.

Without --model, uploads a file with one request per line. With --follow the exit code is 0 if every request finished, 1 if the
batch failed or expired, and 3 if it was cancelled. In a pipe the first line is the batch with its id; with --follow the events
come after it.

Options:
  --model ID            model of all rows
  --prompt-column NAME  column with the prompts (default: prompt, or the only column)
  --system TEXT         system message of all rows
  --max-tokens N        maximum output tokens per row
  --temperature X       sampling temperature, such as 0
  --out FILE            .csv, .tsv or .jsonl file to write (default: next to TABLE, such as prompts.answers.csv)
  --new                 run the rows again, even if a batch of the same rows exists
  --cancel-on-interrupt
                        Ctrl-C cancels the batch and writes the answers so far
  --endpoint PATH       without --model: endpoint of the requests (default: the url of the first line)
  --window DURATION     time limit for the whole batch, such as 90m or 24h (default ${WINDOW})
  --metadata KEY=VALUE  attach metadata to the batch; repeatable
  --follow              without --model: show progress until the batch has finished

Examples:
  sluice batch prompts.csv --model smollm2-135m-instruct --prompt-column question --out answers.csv
  sluice batch letters/ --model smollm2-135m-instruct --system 'Summarize the letter.'
  sluice batch requests.jsonl --follow
  sluice results $(sluice batch requests.jsonl --window 2h | jq -r .id) > answers.jsonl`,
  options: {
    ...TABLE_OPTIONS,
    endpoint: { type: 'string' },
    window: { type: 'string' },
    metadata: { type: 'string', multiple: true },
    follow: { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args } = invocation
    const path = onlyArgument(args, 'FILE')
    const table = await findTable(path)
    const model = values.text('model')
    if (model !== undefined) {
      if (!table) throw usageError(`${path} must be a .csv, .tsv or .jsonl file, or a directory of text files.`)
      const misplaced = ['endpoint', 'follow'].find((name) => values.given().includes(name))
      if (misplaced !== undefined) throw usageError(`--${misplaced} is for a file of requests, without --model.`)
      return await runTable(invocation, table, optionsOf(values, table, model))
    }
    const misplaced = Object.keys(TABLE_OPTIONS).find((name) => values.given().includes(name))
    if (misplaced !== undefined || (table && table.format !== 'jsonl')) {
      const problem = misplaced === undefined ? `${path} is a table of prompts.` : `--${misplaced} is for a table.`
      throw usageError(problem, 'Choose the model with --model. `sluice models` lists the models.')
    }
    return await runRequests(invocation, path)
  },
}

function optionsOf(values: Values, table: Table, model: string): TableOptions {
  const asked = values.text('temperature')
  const temperature = asked === undefined ? undefined : Number(asked)
  if (temperature !== undefined && !(asked?.trim() && temperature >= 0 && temperature <= 2)) {
    throw usageError(`--temperature must be a number from 0 to 2; got '${asked}'.`)
  }
  return {
    ...{ model, temperature },
    promptColumn: values.text('prompt-column'),
    system: values.text('system'),
    maxTokens: values.count('max-tokens', 1, 1_000_000),
    out: outPathOf(table, values.text('out')),
  }
}

async function runTable({ values, api, out }: Invocation, table: Table, options: TableOptions): Promise<ExitCode> {
  const batches = new BatchesApi(api.http)
  await using files = await RunFiles.open()
  const converted = await convertRows(table, options, files.requests)
  const metadata = metadataOf(values.list('metadata'))
  const asked = { window: values.text('window') ?? WINDOW, metadata, isNew: values.has('new') }
  const { batch: opened, isResumed } = await openBatch(batches, converted, files.requests, asked)
  if (isResumed) out.note(`Continuing ${opened.id}, which has the same rows. To run the rows again: --new`)
  else out.note(`${opened.id}: ${converted.requests} requests`)
  const progress = new BatchProgress(batches, out, { cancelOnInterrupt: values.has('cancel-on-interrupt') })
  const ended = await progress.follow(opened)
  if (ended.status === 'failed') throw new CommandError(EXIT.failed, `${ended.id} failed.`, problemsOf(ended))
  const { answered, failed } = await writeOutput(batches, ended, table, converted, files, options.out)
  const written = { batch: ended.id, status: ended.status, out: options.out, answered, failed }
  if (!out.isHumanReadable) await out.json(written)
  else await out.write(`${coloured(failed > 0 ? 'yellow' : 'green', resultText(written))}\n`)
  if (ended.status === 'cancelled') return EXIT.cancelled
  return ended.status === 'completed' && answered > 0 ? EXIT.ok : EXIT.failed
}

function resultText({
  out,
  answered,
  failed,
  status,
}: {
  out: string
  answered: number
  failed: number
  status: string
}) {
  const failures = failed > 0 ? `, ${failed} without an answer (column error)` : ''
  return `${plain(out)}: ${answered} answers${failures}${status === 'completed' ? '' : `; the batch is ${plain(status)}`}`
}

const PROBLEMS_MAX = 10

function problemsOf({ errors }: BatchView): string {
  const problems = errors?.data ?? []
  const shown = problems.slice(0, PROBLEMS_MAX).map(({ line, message }) => {
    return plain(line == null ? message : `request ${line}: ${message}`)
  })
  return [...shown, ...(problems.length > PROBLEMS_MAX ? [`and ${problems.length - PROBLEMS_MAX} more`] : [])].join(
    '\n',
  )
}

async function runRequests(invocation: Invocation, path: string): Promise<ExitCode> {
  const { values, api, out } = invocation
  const endpoint = values.text('endpoint') ?? (await endpointIn(path))
  const metadata = metadataOf(values.list('metadata'))
  const batches = new BatchesApi(api.http)
  const input_file_id = await batches.upload(path)
  const completion_window = values.text('window') ?? WINDOW
  const created = await batches.create({ input_file_id, endpoint, completion_window, ...(metadata && { metadata }) })
  if (!values.has('follow')) {
    const next = `To follow the batch: sluice follow ${created.id}`
    if (!out.isHumanReadable) await out.json(created)
    else await out.write(`${coloured('green', created.id)} ${created.status}\n${next}\n`)
    return EXIT.ok
  }
  // The id of the batch is printed here, because later events contain only the id of its job, which `sluice results` does not accept.
  if (out.isHumanReadable) out.note(created.id)
  else await out.json(created)
  return await followBatch(invocation, created.id, 0)
}

async function endpointIn(path: string): Promise<string> {
  const file = await open(path).catch((error: Error) => {
    throw usageError(`${path}: ${error.message}`)
  })
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0)
    const [line = ''] = buffer.toString('utf8', 0, bytesRead).trimStart().split('\n')
    if (!line.startsWith('{')) throw usageError(`${path}: the first line is not a request.`, FORMAT_HINT)
    const { url } = JSON.parse(line) as { url?: unknown }
    if (typeof url === 'string') return url
  } catch (error) {
    // A line longer than HEAD_BYTES is truncated and therefore not valid JSON.
    if (!(error instanceof SyntaxError)) throw error
  } finally {
    await file.close()
  }
  throw usageError(`${path}: the first line has no url.`, 'Set the endpoint with --endpoint.')
}

/** Remedy if the first line is not a request. The file may have another format, so --endpoint would not help. */
const FORMAT_HINT =
  'Each line must be a JSON object with custom_id, method, url and body. For rows of prompts use .csv, .tsv or .jsonl with --model.'
