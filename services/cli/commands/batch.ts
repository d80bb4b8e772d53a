import { open } from 'node:fs/promises'
import { BatchesApi } from '#services/cli/client/batches-api.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { followBatch } from '#services/cli/following/batch.ts'
import { coloured } from '#services/cli/text/output.ts'
import { metadataOf } from './submit.ts'

const WINDOW = '24h'
/** Maximum bytes of the file that are read to find the endpoint in its first line. */
const HEAD_BYTES = 256 * 1024

export const batch: Command = {
  summary: 'Run a file of requests as a batch',
  help: `Usage: sluice batch FILE.jsonl [options]

Uploads a file with one request per line and runs the requests when capacity is free. With --follow the exit code is 0 if every
request finished, 1 if the batch failed or expired, and 3 if it was cancelled. Ctrl-C stops following but does not cancel the
batch. In a pipe the first line is the batch with its id; with --follow the events come after it.

Options:
  --endpoint PATH       endpoint of the requests (default: the url of the first line)
  --window DURATION     time limit for the whole batch, such as 90m or 24h (default ${WINDOW})
  --metadata KEY=VALUE  attach metadata to the batch; repeatable
  --follow              show progress until the batch has finished

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
    const created = await batches.create({ input_file_id, endpoint, completion_window, ...(metadata && { metadata }) })
    if (!values.has('follow')) {
      if (!out.isHumanReadable) await out.json(created)
      else
        await out.write(`${coloured('green', created.id)} ${created.status}\nTo follow: sluice follow ${created.id}\n`)
      return EXIT.ok
    }
    // Prints the id of the batch, because later events contain only the id of its job, which `sluice results` does not accept.
    if (out.isHumanReadable) out.note(created.id)
    else await out.json(created)
    return await followBatch(invocation, created.id, 0)
  },
}

/** The `url` of the first line. @throws CommandError */
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
    // A line longer than HEAD_BYTES is cut and therefore not valid JSON.
    if (!(error instanceof SyntaxError)) throw error
  } finally {
    await file.close()
  }
  throw usageError(`${path}: the first line has no url.`, 'Set the endpoint with --endpoint.')
}

/**
 * Remedy if the first line is not a request. The file may have another format, such as one prompt per line, so --endpoint would not help.
 */
const FORMAT_HINT =
  'Each line must be a JSON object with custom_id, method, url and body. docs/guides/batches.md shows how to create one from prompts.'
