import { createWriteStream } from 'node:fs'
import { basename, extname } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { BatchesApi, type BatchView, isGone } from '#services/cli/client/http.ts'
import { endedAt } from '#services/cli/client/job.ts'
import { ageOf, ESTIMATING, rangeText } from '#services/cli/client/job-text.ts'
import { adminFilterOf } from '#services/cli/commands/bulk.ts'
import { type Command, noArguments, onlyArgument } from '#services/cli/commands/command.ts'
import {
  CommandError,
  EXIT,
  type ExitCode,
  type Output,
  plain,
  printable,
  tableOf,
  usageError,
} from '#services/cli/text/output.ts'
import { customIdOf, FORM_KEY, formIn, isEmptyRow, TABLE_FILE_KEY, valuesIn } from '#shared/tables/answers.ts'
import { FORMATS, MARK } from '#shared/tables/output.ts'
import { Answers } from './answers.ts'
import { RunFiles } from './convert.ts'
import { ENDED } from './follow-table.ts'
import { findTable, rowsOf, type Table } from './input.ts'
import { outputLines } from './write.ts'

/** Query parameter that adds the results of the earlier batches whose failed requests this batch runs again. */
const EARLIER = { include: 'earlier' }

export const results: Command = {
  summary: 'Print the results of a batch',
  help: `Usage: sluice results BATCH [--errors] [--csv [--bom] [--input TABLE]]

Prints the results so far, also while the batch runs. The exit code is 5 if the batch has not finished. The format is one line of
JSON per request. If the batch retries an earlier batch, then all requests of both are printed, each with its newest result. With
--csv, a batch of a table gives each row of the table with its result, as in the output of sluice batch. Any other batch gives the
columns custom_id, answer, error, finish_reason, input_tokens and output_tokens.

Options:
  --errors       print only the failed requests
  --csv          print CSV for a spreadsheet; a text that begins with =, +, - or @ gets an apostrophe in front
  --bom          with --csv: begin with a byte order mark, for Excel (default: if the table has one)
  --input TABLE  with --csv: read the rows from this file, for example if the uploaded table was deleted

Examples:
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > answers.jsonl
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --csv > answers.csv
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --errors | jq -r .custom_id`,
  options: {
    errors: { type: 'boolean' },
    csv: { type: 'boolean' },
    bom: { type: 'boolean' },
    input: { type: 'string' },
  },
  async run({ values, args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'BATCH')
    const batches = new BatchesApi(api.http)
    const input = values.text('input')
    if (input !== undefined && (!values.has('csv') || values.has('errors'))) {
      throw usageError('--input needs --csv, and cannot be combined with --errors.')
    }
    const hasMark = values.has('bom')
    if (hasMark && !values.has('csv')) throw usageError('--bom needs --csv.')
    if (id.startsWith('msgbatch_')) {
      await print((await batches.messagesResults(id)).body, out)
      return EXIT.ok
    }
    const batch = await batches.get(id)
    const isTable = values.has('csv') && !values.has('errors')
    const hasTable = isTable && (input !== undefined || batch.metadata?.[TABLE_FILE_KEY] !== undefined)
    await using files = hasTable ? await RunFiles.open() : undefined
    const table = files && (await tableOfBatch(batches, batch, input, files, out))
    const query = { format: values.has('csv') ? 'csv' : 'jsonl', ...(values.has('errors') && { status: 'failed' }) }
    if (hasMark && !table) await out.write(MARK)
    if (table) await printTable(batches, batch, { ...table, hasMark: table.hasMark || hasMark }, files, out)
    else await print((await batches.results(batch.id, { ...query, ...EARLIER })).body, out)
    if (ENDED.has(batch.status)) return EXIT.ok
    const { total, completed, failed } = batch.request_counts
    throw new CommandError(
      EXIT.refused,
      `${plain(id)} has not finished: ${completed + failed} of ${total} requests have ended.`,
      `To follow the batch: sluice follow ${id}`,
    )
  },
}

/** Returns the table of `--input`, otherwise the table that was uploaded with the batch. Undefined if the batch has no table. */
async function tableOfBatch(
  batches: BatchesApi,
  { metadata }: BatchView,
  input: string | undefined,
  files: RunFiles,
  out: Output,
): Promise<Table | undefined> {
  if (input !== undefined) {
    const table = await findTable(input)
    if (!table) throw usageError(`${input} must be a .csv, .tsv or .jsonl file, or a directory of text files.`)
    if (metadata?.name !== undefined && metadata.name !== basename(input)) {
      out.note(`The batch was made from ${plain(metadata.name)}; the rows of ${plain(input)} may differ.`)
    }
    return table
  }
  const id = metadata?.[TABLE_FILE_KEY] ?? ''
  try {
    const extension = extname((await batches.file(id)).filename).toLowerCase()
    const path = files.tableWith(Object.hasOwn(FORMATS, extension) ? extension : '.csv')
    await pipeline((await batches.fileContent(id)).body, createWriteStream(path))
    return await findTable(path)
  } catch (error) {
    if (!isGone(error)) throw error
    out.note(
      'The table of this batch was deleted or has expired, so the CSV has only the results. To add the columns of the table: repeat the command with --input TABLE',
    )
    return undefined
  }
}

/** Prints each row of a table with its result. The custom id of a result contains the number of its row. */
async function printTable(
  batches: BatchesApi,
  { id, metadata }: BatchView,
  table: Table,
  files: RunFiles,
  out: Output,
): Promise<void> {
  const form = formIn(metadata?.[FORM_KEY])
  const read = { ...table, rowsMax: form.rows }
  const columns = new Set<string>()
  const keys: string[] = []
  for await (const row of rowsOf(read)) {
    for (const name of row.keys()) columns.add(name)
    keys.push(form.prompt && isEmptyRow(row, form.prompt) ? '' : customIdOf(keys.length + 1))
  }
  const answers = new Answers(files.results, { valuesOf: valuesIn(form) })
  await answers.add(id, (await batches.results(id, EARLIER)).body, (customId) => customId)
  const rows = { columns: form.shown ?? [...columns], keys, form }
  const lines = outputLines(read, rows, answers, 'results.csv')
  for await (const line of lines) await out.write(out.isHumanReadable ? printable(line) : line)
}

async function print(body: AsyncIterable<Uint8Array>, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  for await (const chunk of body)
    await out.write(out.isHumanReadable ? printable(decoder.decode(chunk, { stream: true })) : chunk)
}

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 1_000

export const batches: Command = {
  summary: 'List batches with their progress, newest first',
  isList: true,
  help: `Usage: sluice batches [--limit N] [--all-projects | --project P]

Lists the batches of your key's project: name, columns of the prompt, finished and failed requests, end or estimated end, rate, and
cost. The rate is in requests per second, usually over the last 5 minutes. The name is that of the file, or the NAME of --metadata name=NAME. With --json, or when output is
not a TTY, each batch is one line of JSON.

Options:
  --limit N  maximum number of batches (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})

Options for keys with the admin scope:
  --all-projects   list the batches of every project
  --project P      list the batches of one project, by id or name

Examples:
  sluice batches
  sluice batches --all-projects
  sluice batches --json | jq -r 'select(.status == "in_progress").id'`,
  options: { limit: { type: 'string' }, 'all-projects': { type: 'boolean' }, project: { type: 'string' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const filter = adminFilterOf(values)
    const limit = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
    const found: BatchView[] = []
    for await (const batch of filter
      ? api.admin.batches({ project: filter.project }, limit)
      : new BatchesApi(api.http).list(limit)) {
      if (out.isHumanReadable) found.push(batch)
      else await out.json(batch)
    }
    if (out.isHumanReadable) await out.write(found.length > 0 ? batchTable(found, out.columns) : 'No batches.\n')
    return EXIT.ok
  },
}

export function batchTable(found: readonly BatchView[], columnsMax: number): string {
  const nowMs = Date.now()
  const hasProjects = found.some(({ project }) => project)
  const rows = found.map((batch) => {
    const { id, created_at, project, project_name, model, status, request_counts, progress, metadata } = batch
    const { total, completed, failed } = request_counts
    const { cost_usd, invalid_answers } = batch
    const rate = progress?.requests_per_second
    return [
      ...[
        id,
        ...(hasProjects ? [project_name ?? project ?? ''] : []),
        metadata?.name ?? '',
        formIn(metadata?.[FORM_KEY]).prompt?.join(', ') ?? '',
        `${completed + failed}/${total}`,
        [...(failed > 0 ? [String(failed)] : []), ...(invalid_answers ? [`${invalid_answers} invalid`] : [])].join(
          ', ',
        ),
        status.replace('_', ' '),
        endOf(batch, nowMs),
      ],
      ...[typeof rate === 'number' ? `${rate}/s` : '', typeof cost_usd === 'number' ? `$${cost_usd.toFixed(4)}` : ''],
      ...[model ?? '', ageOf(created_at, nowMs)],
    ]
  })
  const head = [
    'batch',
    ...(hasProjects ? ['project'] : []),
    'name',
    'prompt',
    'done',
    'failed',
    'status',
    'end',
    'rate',
    'cost',
    'model',
    'age',
  ]
  return tableOf(
    {
      head,
      rows,
      spare: ['prompt', 'rate', 'age', 'model', 'end', 'cost', ...(hasProjects ? ['name'] : [])],
      cut: ['model', 'name'],
    },
    columnsMax,
  )
}

function endOf({ progress, ...batch }: BatchView, nowMs: number): string {
  const ended = endedAt(batch)
  if (ended !== undefined) return `${ageOf(ended, nowMs)} ago`
  if (!progress) return ''
  if (progress.estimated_end_range) return `in ${rangeText(progress.estimated_end_range, nowMs)}`
  const end = progress.estimated_end_at
  return typeof end === 'number'
    ? `in ${ageOf(nowMs / 1_000, end * 1_000)}`
    : batch.waiting_for
      ? 'waiting'
      : ESTIMATING
}
