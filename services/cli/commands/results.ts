import { BatchesApi } from '#services/cli/client/batches-api.ts'
import type { Answer } from '#services/cli/client/http.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode } from '#services/cli/failure.ts'
import { type Output, plain, printable } from '#services/cli/text/output.ts'

/** `sluice results` */
export const results: Command = {
  summary: 'Print what came of the requests of a batch',
  help: `Usage: sluice results BATCH [--errors]

Prints a line of JSON for each request of a batch: those that were answered, then those that were not. Exits 5 while the batch has not
ended.

Options:
  --errors  only those that were not answered

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
    if (!ENDED.has(status)) {
      throw new CommandError(
        EXIT.refused,
        `${plain(id)} has not ended: it is ${plain(status)}.`,
        `Follow it: sluice follow ${id}`,
      )
    }
    for (const file of [...(values.has('errors') ? [] : [output_file_id]), error_file_id]) {
      if (file) await print(await batches.content(file), out)
    }
    return EXIT.ok
  },
}

const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])

async function print({ body }: Answer, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  for await (const chunk of body)
    await out.write(out.isForPeople ? printable(decoder.decode(chunk, { stream: true })) : chunk)
}
