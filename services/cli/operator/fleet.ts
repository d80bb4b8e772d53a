import { setTimeout as delay } from 'node:timers/promises'
import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { tableOf } from '#services/cli/text/output.ts'

const REFRESH_INTERVAL_MS = 2_000

/** Clears the screen and moves the cursor to the top left. */
const CLEAR = '\x1b[2J\x1b[H'

export const workers: Command = {
  summary: 'List the processes of the fleet',
  help: `Usage: sluice workers [--watch]

Lists every live process: role, state, running jobs and capacity, calls that wait for a slot, host and process id, version, and
models. The capacity is the number of jobs that its models can run at once. "suspected" means that heartbeats are missing.
Requires a key with the admin scope.

Options:
  --watch  refresh every two seconds until Ctrl-C

Examples:
  sluice workers
  sluice workers --json | jq -r 'select(.draining).id'`,
  options: { watch: { type: 'boolean' } },
  async run(invocation) {
    noArguments(invocation.args)
    return await showRows(invocation, () => invocation.api.admin.workers(), workerTable)
  },
}

export const pools: Command = {
  summary: 'List pools with slots and queue lengths',
  help: `Usage: sluice pools [--watch]

Lists the workers, slots and free slots of each pool. Also lists queued calls, queued durable jobs (normal and low priority),
scheduled jobs, and the age of the oldest queued job. "calls here" counts only the calls of the ingress that responds. Jobs are those of the whole fleet.
Requires a key with the admin scope.

Options:
  --watch  refresh every two seconds until Ctrl-C

Examples:
  sluice pools --watch
  sluice pools --json | jq 'select(.workers == 0).id'`,
  options: { watch: { type: 'boolean' } },
  async run(invocation) {
    noArguments(invocation.args)
    return await showRows(invocation, () => invocation.api.admin.pools(), poolTable)
  },
}

export function workerTable(found: readonly WorkerView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map((worker) => {
    const {
      id,
      role,
      version,
      slots,
      capacity,
      running,
      parked_calls: parkedCalls,
      draining,
      suspected,
      models,
      last_seen_at: seen,
    } = worker
    const state = suspected ? `suspected ${ageOf(seen ?? 0, nowMs)}` : draining ? 'draining' : 'up'
    const busy = slots === 0 ? '' : `${running}/${capacity ?? slots}`
    return [
      id,
      role,
      state,
      busy,
      parkedCalls ? String(parkedCalls) : '',
      processOf(worker),
      version,
      models?.join(',') ?? '',
    ]
  })
  const head = ['worker', 'role', 'state', 'running', 'queued', 'process', 'version', 'models']
  return tableOf({ head, rows, spare: ['version', 'models'] }, columnsMax)
}

/** Host and process id, or an empty text if they were not reported. */
function processOf({ host, pid }: WorkerView): string {
  return host && pid ? `${host}:${pid}` : ''
}

function poolTable(found: readonly PoolView[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = found.map((pool) => {
    const { id, workers: count, draining, slots, free, calls, jobs, oldest_queued_at: oldest, paused } = pool
    const queued = jobs ? [jobs.queued.normal, jobs.queued.low, jobs.scheduled].map(String) : ['', '', '']
    const age = oldest === null || oldest === undefined ? '' : ageOf(oldest, nowMs)
    const state = paused.map((one) => (one.target === 'pool' ? 'paused' : `${one.id} paused`)).join(', ')
    const up = draining > 0 ? `${count} (${draining} draining)` : String(count)
    return [id, up, String(slots), String(free), String(calls.queued), ...queued, age, state]
  })
  const head = ['pool', 'workers', 'slots', 'free', 'calls here', 'jobs', 'low', 'scheduled', 'oldest', 'paused']
  return tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)
}

/** Prints a table once, or with --watch every two seconds until Ctrl-C. */
async function showRows<Row>(
  { out, values }: Invocation,
  read: () => Promise<readonly Row[]>,
  tableOfRows: (rows: readonly Row[], columnsMax: number) => string,
): Promise<ExitCode> {
  const isWatching = values.has('watch')
  for (;;) {
    const rows = await read()
    if (!out.isHumanReadable) for (const row of rows) await out.json(row)
    else await out.write((isWatching ? CLEAR : '') + tableOfRows(rows, out.columns))
    if (!isWatching) return EXIT.ok
    await delay(REFRESH_INTERVAL_MS)
  }
}
