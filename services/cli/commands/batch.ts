import { open } from 'node:fs/promises'
import { BatchesApi, type BatchView } from '#services/cli/client/batches-api.ts'
import { type Command, onlyArgument } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { coloured, plain } from '#services/cli/text/output.ts'
import { follow } from './follow.ts'
import { metadataOf } from './submit.ts'

const WINDOW = '24h'
/** Of the first line, in which its endpoint is looked for. */
const HEAD_BYTES = 256 * 1024
/** Problems of lines that are shown. */
const PROBLEMS_SHOWN = 10

/** `sluice batch` */
export const batch: Command = {
  summary: 'Run a file of requests as a batch',
  help: `Usage: sluice batch FILE.jsonl [options]

Uploads a file with a request on each line, and has all of them done when there is room. Ctrl-C stops the following, not the batch. With
--follow it exits 0 when every request has ended, 1 when the batch failed or expired, 3 when it was cancelled.

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
      else await out.write(`${coloured('green', made.id)} ${made.status}\nFollow it: sluice follow ${jobOf(made)}\n`)
      return EXIT.ok
    }
    if (out.isForPeople) out.note(made.id)
    const exit = await follow(invocation, jobOf(made), 0)
    const ended = await batches.get(made.id)
    for (const line of linesOf(ended)) out.note(line)
    return exit === EXIT.ok ? exitOf(ended) : exit
  },
}

/** A batch is a job under another name. */
function jobOf({ id }: BatchView): string {
  return id.replace('batch_', 'job_')
}

function exitOf({ status }: BatchView): ExitCode {
  if (status === 'completed') return EXIT.ok
  return status === 'cancelled' ? EXIT.cancelled : EXIT.failed
}

function linesOf({ id, status, errors, request_counts: { total, completed, failed } }: BatchView): string[] {
  const problems = (errors?.data ?? []).slice(0, PROBLEMS_SHOWN).map(({ line, message }) => {
    return plain(line == null ? message : `line ${line}: ${message}`)
  })
  const counts = `${plain(status)}: ${completed} of ${total} requests completed, ${failed} failed`
  return [counts, ...problems, ...(completed + failed > 0 ? [`What came of them: sluice results ${id}`] : [])]
}

/** The endpoint that the first line names. @throws CommandError */
async function endpointIn(path: string): Promise<string> {
  const file = await open(path).catch((error: Error) => {
    throw usageError(`${path}: ${error.message}`)
  })
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0)
    const [line = ''] = buffer.toString('utf8', 0, bytesRead).trimStart().split('\n')
    const { url } = JSON.parse(line) as { url?: unknown }
    if (typeof url === 'string') return url
  } catch {
    // Said below.
  } finally {
    await file.close()
  }
  throw usageError(`${path}: the first line names no url.`, 'Say what to call with --endpoint.')
}
