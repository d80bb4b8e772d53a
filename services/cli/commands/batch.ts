import { open } from 'node:fs/promises'
import { BatchesApi } from '#services/cli/client/batches-api.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { followBatch } from '#services/cli/following/batch.ts'
import { coloured } from '#services/cli/text/output.ts'
import { metadataOf } from './submit.ts'

const WINDOW = '24h'
/** Of the first line, in which its endpoint is looked for. */
const HEAD_BYTES = 256 * 1024

/** `sluice batch` */
export const batch: Command = {
  summary: 'Run a file of requests as a batch',
  help: `Usage: sluice batch FILE.jsonl [options]

Uploads a file with a request on each line, and has all of them done when there is room. Ctrl-C stops the following, not the batch. With
--follow it exits 0 when every request has ended, 1 when the batch failed or expired, 3 when it was cancelled. In a pipe the first line
is the batch with its id, and with --follow the events come after it.

Options:
  --endpoint PATH       what the requests call (default: the url of the first line)
  --window LENGTH       how long it may take, such as 90m or 24h (default ${WINDOW})
  --metadata KEY=VALUE  keep this with the batch; may be repeated
  --follow              show how far it is until it ends

Examples:
  sluice batch requests.jsonl --follow
  id=$(sluice batch requests.jsonl --window 2h | jq -r .id)
  sluice results $id > answers.jsonl`,
  options: {
    endpoint: { type: 'string' },
    window: { type: 'string' },
    metadata: { type: 'string', multiple: true },
    follow: { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const path = onlyArgument(args, 'FILE')
    const endpoint = values.text('endpoint') ?? (await endpointIn(path))
    const metadata = metadataOf(values.list('metadata'))
    const batches = new BatchesApi(api.http)
    const input_file_id = await batches.upload(path)
    const completion_window = values.text('window') ?? WINDOW
    const made = await batches.create({ input_file_id, endpoint, completion_window, ...(metadata && { metadata }) })
    if (!values.has('follow')) {
      if (!out.isForPeople) await out.json(made)
      else await out.write(`${coloured('green', made.id)} ${made.status}\nFollow it: sluice follow ${made.id}\n`)
      return EXIT.ok
    }
    // The events that follow name the job behind the batch, whose id is not the one that `sluice results` takes.
    if (out.isForPeople) out.note(made.id)
    else await out.json(made)
    return await followBatch(invocation, made.id, 0)
  },
}

/** The endpoint that the first line names. @throws CommandError */
async function endpointIn(path: string): Promise<string> {
  const file = await open(path).catch((error: Error) => {
    throw usageError(`${path}: ${error.message}`)
  })
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0)
    const [line = ''] = buffer.toString('utf8', 0, bytesRead).trimStart().split('\n')
    if (!line.startsWith('{')) throw usageError(`${path}: the first line is no request.`, FORM)
    const { url } = JSON.parse(line) as { url?: unknown }
    if (typeof url === 'string') return url
  } catch (error) {
    // A line that is longer than the head is no JSON here.
    if (!(error instanceof SyntaxError)) throw error
  } finally {
    await file.close()
  }
  throw usageError(`${path}: the first line names no url.`, 'Say what to call with --endpoint.')
}

/** For who has a file of something else, such as of prompts: what to call would not help it. */
const FORM =
  'Each line is a JSON object with custom_id, method, url and body. docs/batches.md shows how to make such a file of prompts.'
