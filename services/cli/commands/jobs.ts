import { RequestAnswer } from '#schemas/admin/requests.ts'
import { ApiError, BATCHES, BatchesApi, type HttpResponse } from '#services/cli/client/http.ts'
import { exitCodeOf, type JobView, queueText, type StepView } from '#services/cli/client/job.ts'
import { ageOf, attemptText, describeJob } from '#services/cli/client/job-text.ts'
import type { JobFilter } from '#services/cli/client/jobs-api.ts'
import {
  CommandError,
  coloured,
  EXIT,
  type ExitCode,
  type Output,
  plain,
  printable,
  tableOf,
  timeOf,
  usageError,
} from '#services/cli/text/output.ts'
import { adminFilterOf, BULK_MAX, JOB_SELECTOR_HELP, JOB_SELECTOR_OPTIONS, runBulkAction } from './bulk.ts'
import { type Command, type Invocation, noArguments, onlyArgument, type Values } from './command.ts'
import { batchLines, follow, followBatch } from './following.ts'
import { attemptTable } from './logs.ts'
import { metadataOf } from './submit.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000

export const jobs: Command = {
  summary: 'List jobs, newest first',
  isList: true,
  help: `Usage: sluice jobs [options]

Lists the jobs of your key's project, newest first. A batch is one job; --group lists its requests. Calls of the Responses API
are stored by default, and each stored call is a durable job with a row. On a terminal, the output is a table. With --json, or
when output is not a TTY, each job is one line of JSON.

Options:
  --status LIST    only jobs in these statuses, comma-separated: queued, scheduled, retrying, in_progress, cancelling, completed, failed,
                   cancelled, expired
  --endpoint PATH  only jobs of this endpoint
  --group ID       only the requests of this batch, or the child jobs of this composed job
  --metadata KEY=VALUE
                   only jobs with this metadata; repeatable
  --since TIME     only jobs created since 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 2h
  --limit N        maximum number of jobs (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})

${JOB_SELECTOR_HELP}

Examples:
  sluice jobs --status queued,in_progress
  sluice jobs --all-projects --status queued --model smollm2-135m-instruct
  sluice jobs --status failed --since 1d --json | jq -r '.id + " " + .error.message'`,
  options: {
    status: { type: 'string' },
    endpoint: { type: 'string' },
    group: { type: 'string' },
    metadata: { type: 'string', multiple: true },
    since: { type: 'string' },
    limit: { type: 'string' },
    ...JOB_SELECTOR_OPTIONS,
  },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const adminFilter = adminFilterOf(values)
    const limit = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
    const found: JobView[] = []
    for await (const job of adminFilter ? api.admin.list(adminFilter, limit) : api.list(ownFilterOf(values), limit)) {
      if (out.isHumanReadable) found.push(job)
      else await out.json(job)
    }
    if (out.isHumanReadable) await out.write(found.length > 0 ? jobTable(found, out.columns) : 'No jobs.\n')
    return EXIT.ok
  },
}

function ownFilterOf(values: Values): JobFilter {
  const since = values.text('since')
  return {
    statuses: values.parts('status'),
    endpoint: values.text('endpoint'),
    group: values.text('group'),
    metadata: metadataOf(values.list('metadata')),
    since: since === undefined ? undefined : timeOf('since', since, Date.now(), -1),
  }
}

const COLOURS: Readonly<Record<string, 'green' | 'red' | 'yellow'>> = {
  completed: 'green',
  failed: 'red',
  expired: 'red',
  cancelled: 'yellow',
  cancelling: 'yellow',
}

/** Maximum characters of a prompt in the table. */
const PROMPT_CHARS_MAX = 40

export function jobTable(found: readonly JobView[], columnsMax: number): string {
  const nowMs = Date.now()
  const hasProjects = found.some(({ project }) => project)
  const hasRows = found.some(({ metadata }) => metadata?.custom_id)
  const hasPrompts = found.some(({ prompt_preview }) => prompt_preview)
  const rows = found.map((job) => {
    const { percent } = job.progress ?? {}
    const progress = typeof percent === 'number' && exitCodeOf(job) === undefined ? ` ${Math.round(percent)} %` : ''
    const age = ageOf(job.created_at, nowMs)
    const project = hasProjects ? [job.project ?? ''] : []
    return [
      ...[
        job.id,
        ...(hasRows ? [job.metadata?.custom_id ?? ''] : []),
        ...(hasPrompts ? [(job.prompt_preview ?? '').slice(0, PROMPT_CHARS_MAX)] : []),
        ...project,
        age,
        job.endpoint ?? '',
        job.model ?? '',
        attemptText(job),
      ],
      `${job.status}${progress}${queueText(job)}`,
    ]
  })
  const head = [
    'job',
    ...(hasRows ? ['request'] : []),
    ...(hasPrompts ? ['prompt'] : []),
    ...(hasProjects ? ['project'] : []),
    'age',
    'endpoint',
    'model',
    'attempt',
    'status',
  ]
  const table = { head, rows, spare: ['attempt', 'endpoint', 'project'], cut: ['prompt', 'model', 'request'] }
  const [top, ...lines] = tableOf(table, columnsMax).split('\n')
  const tinted = lines.map((line, i) => {
    const status = found[i]?.status ?? ''
    const colour = COLOURS[status]
    return colour ? line.replace(/\S+$/, (word) => (word === status ? coloured(colour, word) : word)) : line
  })
  return [top, ...tinted].join('\n')
}

const WAIT_SECONDS_MAX = 7 * 86_400

export const get: Command = {
  summary: 'Show a job, wait for it, or print its result',
  help: `Usage: sluice get JOB [--wait N] [--result]

Shows a job; on a terminal with the beginning of its output. The summary of an ended batch is printed on stderr. With --wait or --result the exit code is 0 for completed, 1 for
failed or expired, 3 for cancelled, and 5 for a job that has not finished. A key with the admin scope sees the jobs of every
project, with the reason why they are pending and without their results.

Options:
  --wait N   wait up to N seconds until the job has finished
  --result   print only the result, byte for byte as the endpoint would return it

Examples:
  sluice get job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice get job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --wait 600 --result > answer.json`,
  options: { wait: { type: 'string' }, result: { type: 'boolean' } },
  async run(invocation): Promise<ExitCode> {
    const { values, args, api, out } = invocation
    const id = onlyArgument(args, 'JOB')
    if (id.startsWith('req_'))
      throw usageError(`${id} is the id of a request.`, `To show the request: sluice logs ${id}`)
    const waitSeconds = values.count('wait', 0, WAIT_SECONDS_MAX)
    const job = await api.get(id, waitSeconds)
    if (values.has('result')) return await printResult(invocation, job)
    const batches = new BatchesApi(api.http)
    const batch = job.endpoint === BATCHES && !isForeign(job) ? await batches.get(job.id) : undefined
    if (!out.isHumanReadable) await out.json(job)
    else await out.write(describeJob(job, batch))
    const isOwnEnd = exitCodeOf(job) !== undefined && !isForeign(job)
    if (isOwnEnd && batch) {
      for (const line of await batchLines(batches, batch)) out.note(line)
    } else if (isOwnEnd && out.isHumanReadable && exitCodeOf(job) === EXIT.ok)
      out.note(`For the full result: sluice get ${job.id} --result`)
    else if (job.status === 'failed' || (job.attempt ?? 0) > 1) await printRequest(invocation, job)
    return waitSeconds === undefined ? EXIT.ok : (exitCodeOf(job) ?? EXIT.refused)
  },
}

/** Prints the failed attempts and the next step of a job. The request log has the row of a job from about a second after its end. */
async function printRequest({ api, out }: Invocation, { id }: JobView): Promise<void> {
  const row = await api.http.json(RequestAnswer, `/v1/admin/requests/${id}`).catch((error: unknown) => {
    if (error instanceof ApiError) return undefined
    throw error
  })
  const { failed_attempts = [], next_step } = row ?? {}
  if (out.isHumanReadable && failed_attempts.length > 0)
    await out.write(`\n${attemptTable(failed_attempts, out.columns)}`)
  if (next_step) out.note(`Next step: ${plain(next_step)}`)
}

async function printResult({ api, out }: Invocation, job: JobView): Promise<ExitCode> {
  const exit = exitCodeOf(job)
  if (exit === undefined) {
    const next = `To wait for the job: sluice get ${job.id} --wait 60 --result, or sluice follow ${job.id}`
    throw new CommandError(EXIT.refused, `${job.id} has no result yet; its status is ${plain(job.status)}.`, next)
  }
  if (exit !== EXIT.ok) {
    const reason = job.error ? `: ${plain(job.error.message)}` : ''
    throw new CommandError(
      exit,
      `${job.id} ${plain(job.status)}${reason}`,
      `To run the job again: sluice redrive ${job.id}`,
    )
  }
  if (isForeign(job)) {
    const message = `${job.id} belongs to project ${plain(job.project ?? '')}; only keys of that project can read the result.`
    throw new CommandError(EXIT.refused, message)
  }
  const answer = await api.result(job.id)
  if (out.isHumanReadable) await writeText(answer, out)
  else for await (const chunk of answer.body) await out.write(chunk)
  return EXIT.ok
}

/** Whether the job was read from the admin API, which never returns results. */
function isForeign({ project }: JobView): boolean {
  return typeof project === 'string'
}

/** Prints a response body on a terminal: control characters are removed, and a missing final line break is added. */
async function writeText({ body }: HttpResponse, out: Output): Promise<void> {
  const decoder = new TextDecoder()
  let last = ''
  for await (const chunk of body) {
    const text = printable(decoder.decode(chunk, { stream: true }))
    last = text.at(-1) ?? last
    await out.write(text)
  }
  if (last !== '\n') await out.write('\n')
}

const AFTER_MAX = 2 ** 31 - 1

export const followCommand: Command = {
  summary: 'Follow a job or batch until it has finished',
  help: `Usage: sluice follow JOB [--after N]

Follows a job or a batch until it has finished. The exit code is 0 for completed, 1 for failed or expired, and 3 for cancelled. On
a terminal, shows a progress bar and the output as it arrives. With --json, or when output is not a TTY, prints each event as a
line of JSON. A lost connection resumes after the last event. While the service is starting, the command tries to connect for about
8 seconds. Ctrl-C stops following but does not cancel the job.

Options:
  --after N  skip events up to sequence number N

Examples:
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --after 17
  sluice follow batch_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice follow job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --json | jq -r .type`,
  options: { after: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const { values, args } = invocation
    const id = onlyArgument(args, 'JOB')
    const after = values.count('after', 0, AFTER_MAX) ?? 0
    return id.startsWith('batch_') ? await followBatch(invocation, id, after) : await follow(invocation, id, after)
  },
}

const MAX_DEFAULT = 100

export const cancel: Command = {
  summary: 'Cancel a job',
  help: `Usage: sluice cancel JOB
       sluice cancel --all-projects|--project P [--status LIST] [--since TIME] [--max N] [--dry-run]

Cancels a queued job at once. A running job has the status cancelling until its worker has stopped; if the job finishes first,
it keeps its result. A research job submitted with "on_cancel": "partial" writes a partial report within 30 seconds and
completes; a second cancel stops it at once. A job that has already finished is an error (exit code 5).

${JOB_SELECTOR_HELP}
  --status LIST    only jobs in these statuses: queued, in_progress (default: both)
  --since TIME     only jobs created since 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 2h
  --max N          maximum number of jobs, newest first (default ${MAX_DEFAULT}, maximum ${BULK_MAX})
  --dry-run        only list the jobs that would be cancelled

Examples:
  sluice cancel job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice cancel --project proj_7Qm2xT9b --status queued --dry-run`,
  options: {
    ...JOB_SELECTOR_OPTIONS,
    status: { type: 'string' },
    since: { type: 'string' },
    max: { type: 'string' },
    'dry-run': { type: 'boolean' },
  },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const adminFilter = adminFilterOf(values)
    if (adminFilter && args.length > 0) {
      throw usageError('Use either a JOB or --all-projects or --project, not both.')
    }
    if (adminFilter)
      return await runBulkAction(invocation, 'cancel', adminFilter, values.count('max', 1, BULK_MAX) ?? MAX_DEFAULT)
    const misplaced = ['status', 'since', 'max', 'dry-run'].find((name) => values.given().includes(name))
    if (misplaced !== undefined) throw usageError(`--${misplaced} requires --all-projects or --project.`)
    const job = await api.cancel(onlyArgument(args, 'JOB'))
    if (out.isHumanReadable) await out.write(`${job.id} ${plain(job.status)}\n`)
    else await out.json(job)
    return EXIT.ok
  },
}

export const steps: Command = {
  summary: 'List the recorded steps of a composed job',
  isList: true,
  help: `Usage: sluice steps JOB

Lists the recorded steps of a composed job, such as a research job, in execution order. On a terminal, each line shows a step's
input. With --json, or when output is not a TTY, each step is a line of JSON with its input and output. Such a file is a complete
record of the run, useful to compare two runs and to attach to a bug report.

Examples:
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F > run.jsonl
  sluice steps job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F --json | jq -r 'select(.kind == "search").input.query'`,
  options: {},
  async run({ args, api, out }): Promise<ExitCode> {
    const id = onlyArgument(args, 'JOB')
    let count = 0
    for await (const step of api.steps(id)) {
      count++
      if (!out.isHumanReadable) await out.json(step)
      else
        await out.write(
          `${lineOf(step)
            .slice(0, out.columns - 1)
            .toWellFormed()}\n`,
        )
    }
    if (out.isHumanReadable && count === 0) out.note('This job has no recorded steps.')
    return EXIT.ok
  },
}

function lineOf({ number, kind, input, input_cut }: StepView): string {
  const text = plain(JSON.stringify(input ?? input_cut?.beginning ?? null))
  return `${String(number).padStart(4)} ${plain(kind).padEnd(8)} ${text}`
}
