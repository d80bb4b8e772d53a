import { BatchesApi } from '#services/cli/client/batches-api.ts'
import type { HttpResponse } from '#services/cli/client/http.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { type Output, plain, printable } from '#services/cli/text/output.ts'

export const results: Command = {
  summary: 'Print the results of a batch',
  help: `Usage: sluice results BATCH [--errors]

Prints one line of JSON per request: first the successful requests, then the failed ones. The exit code is 5 if the batch has not
finished.

Options:
  --errors  print only the failed requests

Examples:
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > answers.jsonl
  sluice results batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --errors | jq -r .custom_id`,
  options: { errors: { type: 'boolean' } },
  async run({ values, args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'BATCH')
    const batches = new BatchesApi(api.http)
    if (id.startsWith('msgbatch_')) {
      await print(await batches.messagesResults(id), out)
      return EXIT.ok
    }
    const { status, output_file_id, error_file_id } = await batches.get(id.replace(/^job_/, 'batch_'))
    if (!TERMINAL_STATUSES.has(status)) {
      throw new CommandError(
        EXIT.refused,
        `${plain(id)} has not finished; its status is ${plain(status)}.`,
        `To follow: sluice follow ${id}`,
      )
    }
    for (const file of [...(values.has('errors') ? [] : [output_file_id]), error_file_id]) {
      if (file) await print(await batches.content(file), out)
    }
    return EXIT.ok
  },
}

const TERMINAL_STATUSES: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])

async function print({ body }: HttpResponse, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  for await (const chunk of body)
    await out.write(out.isHumanReadable ? printable(decoder.decode(chunk, { stream: true })) : chunk)
}
