import { BatchesApi, type BatchView, type HttpResponse } from '#services/cli/client/http.ts'
import { ageOf, rateText } from '#services/cli/client/job-text.ts'
import { type Command, noArguments, onlyArgument } from '#services/cli/commands/command.ts'
import { CommandError, EXIT, type ExitCode, type Output, plain, printable, tableOf } from '#services/cli/text/output.ts'
import { ENDED } from './follow-table.ts'

export const results: Command = {
  summary: 'Print the results of a batch',
  help: `Usage: sluice results BATCH [--errors] [--csv]

Prints the results so far, also while the batch runs. The exit code is 5 if the batch has not finished. The format is one line of
JSON per request, or CSV with the columns custom_id, answer, error, input_tokens and output_tokens.

Options:
  --errors  print only the failed requests
  --csv     print CSV for a spreadsheet; a text that begins with =, +, - or @ gets an apostrophe in front

Examples:
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > answers.jsonl
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --csv > answers.csv
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --errors | jq -r .custom_id`,
  options: { errors: { type: 'boolean' }, csv: { type: 'boolean' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'BATCH')
    const batches = new BatchesApi(api.http)
    if (id.startsWith('msgbatch_')) {
      await print(await batches.messagesResults(id), out)
      return EXIT.ok
    }
    const batch = await batches.get(id.replace(/^job_/, 'batch_'))
    const query = { format: values.has('csv') ? 'csv' : 'jsonl', ...(values.has('errors') && { status: 'failed' }) }
    await print(await batches.results(batch.id, query), out)
    if (ENDED.has(batch.status)) return EXIT.ok
    const { total, completed, failed } = batch.request_counts
    throw new CommandError(
      EXIT.refused,
      `${plain(id)} has not finished: ${completed + failed} of ${total} requests have ended.`,
      `To follow the batch: sluice follow ${id}`,
    )
  },
}

async function print({ body }: HttpResponse, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  for await (const chunk of body)
    await out.write(out.isHumanReadable ? printable(decoder.decode(chunk, { stream: true })) : chunk)
}

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 1_000

export const batches: Command = {
  summary: 'List batches with their progress, newest first',
  isList: true,
  help: `Usage: sluice batches [--limit N]

Lists the batches of your key's project: finished and failed requests, the rate over the last minutes and the estimated end. With
--json, or when output is not a TTY, each batch is one line of JSON.

Options:
  --limit N  maximum number of batches (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})

Examples:
  sluice batches
  sluice batches --json | jq -r 'select(.status == "in_progress").id'`,
  options: { limit: { type: 'string' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const limit = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
    const found: BatchView[] = []
    for await (const batch of new BatchesApi(api.http).list(limit)) {
      if (out.isHumanReadable) found.push(batch)
      else await out.json(batch)
    }
    if (out.isHumanReadable) await out.write(found.length > 0 ? batchTable(found, out.columns) : 'No batches.\n')
    return EXIT.ok
  },
}

function batchTable(found: readonly BatchView[], columnsMax: number): string {
  const rows = found.map(({ id, created_at, model, status, request_counts, progress }) => {
    const { total, completed, failed } = request_counts
    const done = `${completed + failed}/${total}`
    return [id, ageOf(created_at, Date.now()), model ?? '', done, String(failed), status, rateText(progress ?? {})]
  })
  const head = ['batch', 'age', 'model', 'done', 'failed', 'status', 'rate']
  return tableOf({ head, rows, spare: ['model', 'age'] }, columnsMax)
}
