import type { DeadLetterView, DeliveryView } from '#services/cli/client/admin-api.ts'
import { ageOf } from '#services/cli/client/job-text.ts'
import { EXIT, type ExitCode, orList, plain, tableOf, usageError } from '#services/cli/text/output.ts'
import { type Command, type Invocation, noArguments } from './command.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000
const MAX_DEFAULT = 100
const MAX_MAX = 1_000

const OPTIONS = {
  pool: { type: 'string' },
  limit: { type: 'string' },
  max: { type: 'string' },
  after: { type: 'string' },
  'dry-run': { type: 'boolean' },
} as const
const OPTION_NAMES = Object.keys(OPTIONS)

export const deadLetters: Command = {
  summary: 'List, requeue or discard dead letters',
  isList: true,
  help: `Usage: sluice dead-letters [--pool POOL] [--limit N]
       sluice dead-letters redrive [--pool POOL] [--max N] [--after ID] [--dry-run]
       sluice dead-letters discard ID ...

A dead letter is a queue record that no worker could process, because the record, its kind of call or its version is
unsupported. Lists dead letters of all projects, newest first, with age, origin and reason. Requires a key with the admin
scope. For jobs that ran and failed, use sluice jobs --all-projects --status failed.

redrive requeues the dead letters of durable jobs that the service can process now. Other dead letters cannot be requeued. discard
deletes dead letters from the list, which cannot be undone.

Options:
  --pool POOL  only dead letters of this pool
  --limit N    list: maximum number of dead letters (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})
  --max N      redrive: maximum number to requeue, newest first (default ${MAX_DEFAULT}, maximum ${MAX_MAX})
  --after ID   redrive: only dead letters older than this one
  --dry-run    redrive: only list what would be requeued

Examples:
  sluice dead-letters --pool inference
  sluice dead-letters redrive --dry-run
  sluice dead-letters discard 17 18`,
  options: OPTIONS,
  async run(invocation): Promise<ExitCode> {
    const { args, values } = invocation
    const [action, ...rest] = args
    if (action === 'discard') return await discard(invocation, rest)
    const isRedrive = action === 'redrive'
    noArguments(isRedrive ? rest : args)
    const misplaced = (isRedrive ? ['limit'] : ['max', 'after', 'dry-run']).find((name) =>
      values.given().includes(name),
    )
    if (misplaced !== undefined) {
      throw usageError(`--${misplaced} ${isRedrive ? 'cannot be combined with' : 'requires'} dead-letters redrive.`)
    }
    return isRedrive ? await redrive(invocation) : await listDeadLetters(invocation)
  },
}

async function listDeadLetters({ api, out, values }: Invocation): Promise<ExitCode> {
  const max = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
  const found: DeadLetterView[] = []
  for await (const one of api.admin.deadLetters({ pool: values.text('pool') }, max)) {
    if (out.isHumanReadable) found.push(one)
    else await out.json(one)
  }
  if (out.isHumanReadable) await out.write(found.length > 0 ? letterTable(found, out.columns) : 'No dead letters.\n')
  return EXIT.ok
}

async function redrive({ api, out, values }: Invocation): Promise<ExitCode> {
  const isDryRun = values.has('dry-run')
  const max = values.count('max', 1, MAX_MAX) ?? MAX_DEFAULT
  const filter = { pool: values.text('pool'), after: values.count('after', 0, Number.MAX_SAFE_INTEGER) }
  const { data, has_more, last_id } = await api.admin.redriveDeadLetters(filter, max, isDryRun)
  if (!out.isHumanReadable) for (const one of data) await out.json(isDryRun ? { ...one, dry_run: true } : one)
  else if (data.length > 0) await out.write(letterTable(data, out.columns))
  if (data.length === 0) out.note('No dead letters can be requeued.')
  else if (isDryRun) out.note('Dry run: nothing was changed. To requeue these records, omit --dry-run.')
  else out.note(`Requeued ${data.length} ${data.length === 1 ? 'record' : 'records'}.`)
  if (has_more)
    out.note(`There are older dead letters. To continue with them: repeat the command with --after ${last_id}`)
  return EXIT.ok
}

async function discard({ api, out, values }: Invocation, ids: readonly string[]): Promise<ExitCode> {
  const [misplaced] = OPTION_NAMES.filter((name) => values.given().includes(name))
  if (misplaced !== undefined) throw usageError(`--${misplaced} cannot be combined with dead-letters discard.`)
  if (ids.length === 0) throw usageError('Missing argument: ID of a dead letter.', 'To list them: sluice dead-letters')
  for (const id of ids) {
    const one = await api.admin.discardDeadLetter(id)
    if (out.isHumanReadable) await out.write(`Discarded ${one.id}.\n`)
    else await out.json(one)
  }
  return EXIT.ok
}

function letterTable(found: readonly DeadLetterView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map(({ id, pool, position, reason, job_id, project, created_at, bytes }) => {
    const age = ageOf(created_at, nowMs)
    return [id, age, pool ?? '', plain(reason), job_id ?? '', project ?? '', position ?? '', String(bytes)]
  })
  const head = ['id', 'age', 'pool', 'reason', 'job', 'project', 'offset', 'bytes']
  return tableOf({ head, rows, spare: ['bytes', 'offset', 'project'], cut: ['reason'] }, columnsMax)
}

const DELIVERIES_DEFAULT = 20
const DELIVERIES_MAX = 10_000
const STATUSES: readonly string[] = ['pending', 'failed', 'delivered']

export const deliveries: Command = {
  summary: 'List webhook deliveries and resend failed ones',
  isList: true,
  help: `Usage: sluice deliveries [options]
       sluice deliveries retry ID ...

Lists pending and failed webhook deliveries of all projects, newest first. Each has the outcome of the last attempt and the time
of the next one. retry sends deliveries immediately. For a failed delivery, retry also restarts the retry schedule. Requires a key with
the admin scope.

Options:
  --status S   only deliveries in this status: pending, failed (retries exhausted) or delivered
  --project P  only deliveries of one project, by id or name
  --limit N    maximum number of deliveries (default ${DELIVERIES_DEFAULT}, maximum ${DELIVERIES_MAX})

Examples:
  sluice deliveries --status failed
  sluice deliveries --status failed --limit 500 --json | jq -r .id | xargs sluice deliveries retry`,
  options: { status: { type: 'string' }, project: { type: 'string' }, limit: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const [action, ...ids] = invocation.args
    if (action === 'retry') return await retry(invocation, ids)
    noArguments(invocation.args)
    return await listDeliveries(invocation)
  },
}

async function listDeliveries({ api, out, values }: Invocation): Promise<ExitCode> {
  const [status, project] = [values.text('status'), values.text('project')]
  if (status !== undefined && !STATUSES.includes(status))
    throw usageError(`--status must be ${orList(STATUSES)}; got '${status}'.`)
  const found: DeliveryView[] = []
  for await (const one of api.admin.deliveries(
    { status, project },
    values.count('limit', 1, DELIVERIES_MAX) ?? DELIVERIES_DEFAULT,
  )) {
    if (out.isHumanReadable) found.push(one)
    else await out.json(one)
  }
  if (out.isHumanReadable) await out.write(found.length > 0 ? deliveryTable(found, out.columns) : 'No deliveries.\n')
  return EXIT.ok
}

async function retry({ api, out }: Invocation, ids: readonly string[]): Promise<ExitCode> {
  if (ids.length === 0) throw usageError('Missing argument: ID of a delivery.', 'To list them: sluice deliveries')
  for (const id of ids) {
    const one = await api.admin.retryDelivery(id)
    if (out.isHumanReadable) await out.write(`${one.id} will be sent now.\n`)
    else await out.json(one)
  }
  return EXIT.ok
}

function deliveryTable(found: readonly DeliveryView[], columnsMax: number): string {
  const rows = found.map((one) => {
    const next = one.next_at ? new Date(one.next_at * 1_000).toLocaleString('sv-SE') : ''
    const last = [one.response_status ?? '', plain(one.error ?? '')].filter(Boolean).join(' ')
    return [one.id, one.project, one.type, one.host ?? '', one.status, String(one.attempts), next, last]
  })
  const head = ['delivery', 'project', 'type', 'host', 'status', 'attempts', 'next attempt', 'last response']
  return tableOf(
    { head, rows, spare: ['type', 'attempts', 'host', 'project'], cut: ['last response', 'host'] },
    columnsMax,
  )
}
