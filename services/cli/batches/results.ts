import { basename } from 'node:path'
import { z } from 'zod'
import { BatchesApi, type BatchView } from '#services/cli/client/http.ts'
import { ageOf } from '#services/cli/client/job-text.ts'
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
import { Answers } from './answers.ts'
import { customIdOf, RunFiles } from './convert.ts'
import { ENDED } from './follow-table.ts'
import { findTable, rowsOf } from './input.ts'
import { FORM_KEY } from './table-run.ts'
import { AnswerForm, isEmptyRow, valuesIn } from './task.ts'
import { outputLines } from './write.ts'

export const results: Command = {
  summary: 'Print the results of a batch',
  help: `Usage: sluice results BATCH [--errors] [--csv [--input TABLE]]

Prints the results so far, also while the batch runs. The exit code is 5 if the batch has not finished. The format is one line of
JSON per request, or CSV with the columns custom_id, answer, error, finish_reason, input_tokens and output_tokens. In a batch of a
table, the custom_id row-32 is row 32 of the table, without its header. With --input, the columns of the table replace it.

Options:
  --errors       print only the failed requests
  --csv          print CSV for a spreadsheet; a text that begins with =, +, - or @ gets an apostrophe in front
  --input TABLE  with --csv: print each row of this table, which the batch was made from

Examples:
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > answers.jsonl
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --csv --input prompts.csv > answers.csv
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --errors | jq -r .custom_id`,
  options: { errors: { type: 'boolean' }, csv: { type: 'boolean' }, input: { type: 'string' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'BATCH')
    const batches = new BatchesApi(api.http)
    const input = values.text('input')
    if (input !== undefined && (!values.has('csv') || values.has('errors'))) {
      throw usageError('--input needs --csv, without --errors.')
    }
    if (id.startsWith('msgbatch_')) {
      await print((await batches.messagesResults(id)).body, out)
      return EXIT.ok
    }
    const batch = await batches.get(id.replace(/^job_/, 'batch_'))
    const query = { format: values.has('csv') ? 'csv' : 'jsonl', ...(values.has('errors') && { status: 'failed' }) }
    if (input === undefined) await print((await batches.results(batch.id, query)).body, out)
    else await printJoined(batches, batch, input, out)
    if (ENDED.has(batch.status)) return EXIT.ok
    const { total, completed, failed } = batch.request_counts
    throw new CommandError(
      EXIT.refused,
      `${plain(id)} has not finished: ${completed + failed} of ${total} requests have ended.`,
      `To follow the batch: sluice follow ${id}`,
    )
  },
}

/** Prints each row of a table with its result. The custom id of a result contains the number of its row. */
async function printJoined(batches: BatchesApi, { id, metadata }: BatchView, path: string, out: Output): Promise<void> {
  const table = await findTable(path)
  if (!table) throw usageError(`${path} must be a .csv, .tsv or .jsonl file, or a directory of text files.`)
  if (metadata?.name !== undefined && metadata.name !== basename(path)) {
    out.note(`The batch was made from ${plain(metadata.name)}; the rows of ${plain(path)} may differ.`)
  }
  const form = formIn(metadata?.[FORM_KEY])
  const columns = new Set<string>()
  const keys: string[] = []
  for await (const row of rowsOf(table)) {
    for (const name of row.keys()) columns.add(name)
    keys.push(form.prompt && isEmptyRow(row, form.prompt) ? '' : customIdOf(keys.length + 1))
  }
  const names = form.columns ?? [form.vector ? 'embedding' : 'answer']
  await using files = await RunFiles.open()
  const answers = new Answers(files.results, { valuesOf: valuesIn(form) })
  await answers.add((await batches.results(id)).body, (customId) => customId)
  const lines = outputLines(table, { columns: [...columns], keys, names }, answers, 'results.csv')
  for await (const line of lines) await out.write(out.isHumanReadable ? printable(line) : line)
}

/** Metadata that earlier versions of this command wrote: only the column names of the answer. */
const EarlierForm = z.array(z.string()).transform(([first = 'answer', ...rest]): AnswerForm => {
  if (rest.length > 0) return { columns: [first, ...rest] }
  return first === 'embedding' ? { vector: true } : first === 'answer' ? {} : { columns: [first] }
})
const Form = z.union([EarlierForm, AnswerForm])

/**
 * Returns the {@link AnswerForm} in the metadata of a batch. A batch without this metadata has plain text as its
 * answers.
 */
function formIn(json: string | undefined): AnswerForm {
  try {
    return Form.safeParse(JSON.parse(json ?? '{}')).data ?? {}
  } catch {
    return {}
  }
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

Lists the batches of your key's project: name, finished and failed requests, end or estimated end, and the rate over the last
minutes. The name is that of the file, or of --metadata name=NAME. With --json, or when output is not a TTY, each batch is one
line of JSON.

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

function batchTable(found: readonly BatchView[], columnsMax: number): string {
  const nowMs = Date.now()
  const hasProjects = found.some(({ project }) => project)
  const rows = found.map((batch) => {
    const { id, created_at, project, project_name, model, status, request_counts, progress, metadata } = batch
    const { total, completed, failed } = request_counts
    const done = `${completed + failed}/${total}${failed > 0 ? `, ${failed} failed` : ''}`
    const rate = progress?.requests_per_second
    return [
      ...[
        id,
        ...(hasProjects ? [project_name ?? project ?? ''] : []),
        metadata?.name ?? '',
        done,
        status.replace('_', ' '),
        endOf(batch, nowMs),
      ],
      ...[typeof rate === 'number' ? `${rate}/s` : '', model ?? '', ageOf(created_at, nowMs)],
    ]
  })
  const head = ['batch', ...(hasProjects ? ['project'] : []), 'name', 'done', 'status', 'end', 'rate', 'model', 'age']
  return tableOf(
    { head, rows, spare: ['model', 'rate', 'age', ...(hasProjects ? ['name'] : [])], cut: ['model', 'name'] },
    columnsMax,
  )
}

function endOf({ progress, completed_at }: BatchView, nowMs: number): string {
  if (typeof completed_at === 'number') return `${ageOf(completed_at, nowMs)} ago`
  if (!progress) return ''
  const end = progress.estimated_end_at
  return typeof end === 'number' ? `in ${ageOf(nowMs / 1_000, end * 1_000)}` : 'estimating…'
}
