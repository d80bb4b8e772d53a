import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { type Command, noArguments, onlyArgument } from '#services/cli/command.ts'
import { EXIT } from '#services/cli/failure.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { tableOf } from '#services/cli/text/output.ts'
import { showRows } from './watch.ts'

/** `sluice workers` */
export const workers: Command = {
  summary: 'Show the processes of the fleet',
  help: `Usage: sluice workers [--watch]

Shows every process that is alive: what it is, how many of its slots are taken, whether it drains, and its models. Needs a key
with the scope admin.

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
Calls are those of the ingress that answers. Needs a key with the scope admin.

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

/** `sluice drain` */
export const drain: Command = {
  summary: 'Let a worker take nothing more, or take jobs again',
  help: `Usage: sluice drain WORKER [--undo]

Tells a worker to take nothing more. It finishes what it has and stays, drained, until it is told otherwise or ends: then it can
be stopped without that anybody notices. Needs a key with the scope admin.

Options:
  --undo  let it take jobs again

Examples:
  sluice drain wrk_Qm7xT2bV9dKpZ4sR
  sluice drain wrk_Qm7xT2bV9dKpZ4sR --undo`,
  options: { undo: { type: 'boolean' } },
  async run({ args, api, out, values }) {
    const worker = await api.admin.drain(onlyArgument(args, 'WORKER'), values.has('undo'))
    if (!out.isForPeople) await out.json(worker)
    else if (worker.draining) await out.write(`${worker.id} takes nothing more; it runs ${worker.running} jobs.\n`)
    else await out.write(`${worker.id} takes jobs again.\n`)
    return EXIT.ok
  },
}

function workerTable(found: readonly WorkerView[], columnsMax: number): string {
  const rows = found.map(({ id, role, version, slots, running, draining, silent, models }) => {
    const state = silent ? 'silent' : draining ? 'draining' : 'up'
    return [id, role, state, slots === 0 ? '' : `${running}/${slots}`, version, models?.join(',') ?? '']
  })
  const head = ['worker', 'role', 'state', 'slots', 'version', 'models']
  return tableOf({ head, rows, spare: ['version', 'models'] }, columnsMax)
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
  const head = ['pool', 'workers', 'slots', 'free', 'calls', 'jobs', 'low', 'scheduled', 'oldest', 'paused']
  return tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)
}
