import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { type Command, noArguments } from '#services/cli/command.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { tableOf } from '#services/cli/text/output.ts'
import { showRows } from './watch.ts'

/** `sluice workers` */
export const workers: Command = {
  summary: 'Show the processes of the fleet',
  help: `Usage: sluice workers [--watch]

Shows every process that is alive: what it is, whether it drains or how long it is silent, how many jobs run of those that its models
can run at once (its capacity), the calls that it holds aside without a slot, its machine and process, and its models. Needs a key with the scope admin.

Options:
  --watch  show them anew every two seconds

Examples:
  sluice workers
  sluice workers --json | jq -r 'select(.draining).id'`,
  options: { watch: { type: 'boolean' } },
  async run(invocation) {
    noArguments(invocation.args)
    return await showRows(invocation, () => invocation.api.admin.workers(), workerTable)
  },
}

/** `sluice pools` */
export const pools: Command = {
  summary: 'Show what works and what waits in each pool',
  help: `Usage: sluice pools [--watch]

Shows each pool: its workers, slots and free slots, the calls and the durable jobs that wait, and since when the oldest of these.
The column "calls here" counts those of the ingress that answers; jobs are those of all ingresses. Needs a key with the scope admin.

Options:
  --watch  show them anew every two seconds

Examples:
  sluice pools --watch
  sluice pools --json | jq 'select(.workers == 0).id'`,
  options: { watch: { type: 'boolean' } },
  async run(invocation) {
    noArguments(invocation.args)
    return await showRows(invocation, () => invocation.api.admin.pools(), poolTable)
  },
}

/** Processes under each other, in at most `columnsMax` columns. */
export function workerTable(found: readonly WorkerView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map((worker) => {
    const { id, role, version, slots, capacity, running, aside, draining, silent, models, last_seen_at: seen } = worker
    const state = silent ? `silent ${ageOf(seen ?? 0, nowMs)}` : draining ? 'draining' : 'up'
    const busy = slots === 0 ? '' : `${running}/${capacity ?? slots}`
    return [id, role, state, busy, aside ? String(aside) : '', placeOf(worker), version, models?.join(',') ?? '']
  })
  const head = ['worker', 'role', 'state', 'running', 'aside', 'process', 'version', 'models']
  return tableOf({ head, rows, spare: ['version', 'models'] }, columnsMax)
}

/** Where a worker is; empty where it has not said so. */
function placeOf({ host, pid }: WorkerView): string {
  return host && pid ? `${host}:${pid}` : ''
}

function poolTable(found: readonly PoolView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map((pool) => {
    const { id, workers: count, draining, slots, free, attached, durable, oldest_queued_at: oldest, paused } = pool
    const queued = durable ? [durable.queued.normal, durable.queued.low, durable.scheduled].map(String) : ['', '', '']
    const age = oldest === null || oldest === undefined ? '' : ageOf(oldest, nowMs)
    const state = paused.map((one) => (one.what === 'pool' ? 'paused' : `${one.id} paused`)).join(', ')
    const up = draining > 0 ? `${count} (${draining} drain)` : String(count)
    return [id, up, String(slots), String(free), String(attached.queued), ...queued, age, state]
  })
  const head = ['pool', 'workers', 'slots', 'free', 'calls here', 'jobs', 'low', 'scheduled', 'oldest', 'paused']
  return tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)
}
