import type { DeliveryView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { plain, tableOf } from '#services/cli/text/output.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000
const STATUSES: readonly string[] = ['pending', 'failed', 'delivered']

export const deliveries: Command = {
  summary: 'List webhook deliveries and resend failed ones',
  help: `Usage: sluice deliveries [options]
       sluice deliveries retry ID ...

Lists pending and failed webhook deliveries of all projects, newest first. Each has the outcome of the last attempt and the time
of the next one. retry sends deliveries immediately. For a failed delivery, retry also restarts the retry schedule. Requires a key with
the admin scope.

Options:
  --status S   only deliveries in this status: pending, failed (retries exhausted) or delivered
  --project P  only deliveries of one project, by id or name
  --limit N    maximum number of deliveries (default ${LIMIT_DEFAULT}, maximum ${LIMIT_MAX})

Examples:
  sluice deliveries --status failed
  sluice deliveries --status failed --limit 500 --json | jq -r .id | xargs sluice deliveries retry`,
  options: { status: { type: 'string' }, project: { type: 'string' }, limit: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const [action, ...ids] = invocation.args
    if (action === 'retry') return await retry(invocation, ids)
    noArguments(invocation.args)
    return await list(invocation)
  },
}

async function list({ api, out, values }: Invocation): Promise<ExitCode> {
  const [status, project] = [values.text('status'), values.text('project')]
  if (status !== undefined && !STATUSES.includes(status))
    throw usageError(`--status must be ${STATUSES.join(', ')}; got '${status}'.`)
  const found: DeliveryView[] = []
  for await (const one of api.admin.deliveries(
    { status, project },
    values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT,
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
  return tableOf({ head, rows, spare: ['type', 'attempts', 'host'] }, columnsMax)
}
