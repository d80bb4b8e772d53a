import type { DeliveryView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { plain, tableOf } from '#services/cli/text/output.ts'

const LIMIT_DEFAULT = 20
const LIMIT_MAX = 10_000
const STATUSES: readonly string[] = ['pending', 'failed', 'delivered']

/** `sluice deliveries` */
export const deliveries: Command = {
  summary: 'Show webhook messages, and send again what nobody received',
  help: `Usage: sluice deliveries [options]
       sluice deliveries retry ID ...

Lists the webhook messages of all projects that wait or were given up, newest first, with how the last try went and when the next
is; with --status delivered those that were received. retry sends some at once; one that was given up has all of its tries again. Needs a key with the scope admin.

Options:
  --status S   only these: pending, failed (given up) or delivered
  --project P  only those of one project, by its id or its name
  --limit N    at most so many (default ${LIMIT_DEFAULT}, most ${LIMIT_MAX})

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
    throw usageError(`--status ${status}: give pending, failed or delivered.`)
  const found: DeliveryView[] = []
  for await (const one of api.admin.deliveries(
    { status, project },
    values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT,
  )) {
    if (out.isForPeople) found.push(one)
    else await out.json(one)
  }
  if (out.isForPeople) await out.write(found.length > 0 ? deliveryTable(found, out.columns) : 'No messages.\n')
  return EXIT.ok
}

async function retry({ api, out }: Invocation, ids: readonly string[]): Promise<ExitCode> {
  if (ids.length === 0) throw usageError('Which messages? Give their ids.', 'See them: sluice deliveries')
  for (const id of ids) {
    const one = await api.admin.retryDelivery(id)
    if (out.isForPeople) await out.write(`${one.id} is sent now.\n`)
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
  const head = ['message', 'project', 'type', 'host', 'status', 'tries', 'next try', 'last try']
  return tableOf({ head, rows, spare: ['type', 'tries', 'host'] }, columnsMax)
}
