import { setTimeout as delay } from 'node:timers/promises'
import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { ageOf } from '#services/cli/client/job-text.ts'
import { CommandError, EXIT, type ExitCode, plain, tableOf, usageError } from '#services/cli/text/output.ts'
import { type Command, type Invocation, noArguments, onlyArgument } from './command.ts'

const REFRESH_INTERVAL_MS = 2_000

/** Clears the screen and moves the cursor to the top left. */
const CLEAR = '\x1b[2J\x1b[H'

export const workers: Command = {
  summary: 'List the processes of the fleet',
  isList: true,
  help: `Usage: sluice workers [--watch]

Lists every live process: role, state, running jobs and capacity, calls that wait for a permit, host and process id, version, and
models. The capacity is the number of jobs that its models can run at once. "suspected" means that heartbeats are late.
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
  isList: true,
  help: `Usage: sluice pools [--watch]

Lists the workers, slots and free slots of each pool. Also lists queued calls, queued durable jobs (normal and low priority),
scheduled jobs, and the age of the oldest queued job. A second table lists the models with their running and queued calls and
jobs. The limit of a model is the maximum number of its calls and jobs that run at once, which is often far below the slots. All numbers cover
the whole fleet; the numbers of calls and models are up to two seconds old. Requires a key with the admin scope.

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
    const state = suspected ? `suspected, last heartbeat ${ageOf(seen ?? 0, nowMs)} ago` : draining ? 'draining' : 'up'
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
  return tableOf({ head, rows, spare: ['version', 'models', 'process'], cut: ['models'] }, columnsMax)
}

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
  const head = ['pool', 'workers', 'slots', 'free', 'calls', 'jobs', 'low', 'scheduled', 'oldest', 'paused']
  return `${tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)}${modelTable(found, columnsMax)}`
}

function modelTable(found: readonly PoolView[], columnsMax: number): string {
  const rows = found.flatMap(({ id: pool, models }) =>
    (models ?? []).map(({ id, limit, running, queued }) => [id, pool, `${running}/${limit}`, String(queued)]),
  )
  if (rows.length === 0) return ''
  return `\n${tableOf({ head: ['model', 'pool', 'running/limit', 'queued'], rows, spare: ['pool'], cut: ['model'] }, columnsMax)}`
}

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

/** Maximum value of --wait, which is the maximum duration of a job (7 days). */
const WAIT_SECONDS_MAX = 7 * 86_400
const POLL_INTERVAL_MS = 1_000

export const drain: Command = {
  summary: 'Drain a worker: it starts no new jobs',
  help: `Usage: sluice drain WORKER [--wait N]
       sluice drain WORKER --undo

The worker starts no new jobs and finishes those in flight. The drain ends with --undo or a restart. A drained worker without
jobs can be stopped without effect on callers. Requires a key with the admin scope.

Options:
  --wait N  wait up to N seconds until no job is in flight, and print how many remain; exit code 5 on timeout
  --undo    end the drain: the worker accepts jobs again

Examples:
  sluice drain wrk_Qm7xT2bV9dKpZ4sR --wait 600 && echo ready to stop
  sluice drain wrk_Qm7xT2bV9dKpZ4sR --undo`,
  options: { undo: { type: 'boolean' }, wait: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const id = onlyArgument(args, 'WORKER')
    const waitSeconds = values.count('wait', 0, WAIT_SECONDS_MAX)
    const isUndo = values.has('undo')
    if (isUndo && waitSeconds !== undefined) throw usageError('Use either --wait or --undo, not both.')
    const worker = await api.admin.drain(id, isUndo)
    if (waitSeconds !== undefined) return await waitUntilDrained(invocation, worker, waitSeconds)
    if (!out.isHumanReadable) await out.json(worker)
    else await out.write(`${worker.draining ? statusLine(worker) : `${worker.id} accepts jobs again.`}\n`)
    return EXIT.ok
  },
}

/**
 * Polls the worker until two consecutive polls find no job in flight. The worker counts jobs with and without a slot separately, so a single poll can
 * miss a job that moves between the two counts.
 *
 * @throws CommandError on timeout, or if the drain was undone
 */
async function waitUntilDrained({ api, out }: Invocation, worker: WorkerView, waitSeconds: number): Promise<ExitCode> {
  const deadlineMs = Date.now() + waitSeconds * 1_000
  let [lastLine, emptyPolls] = ['', 0]
  for (let now: WorkerView | undefined = worker; now; now = await find(api, worker.id)) {
    if (!now.draining)
      throw new CommandError(EXIT.refused, `The drain of ${now.id} was undone; the worker accepts jobs again.`)
    emptyPolls = inFlight(now) === 0 ? emptyPolls + 1 : 0
    if (emptyPolls === 2) return await done(out, now)
    const line = statusLine(now)
    if (emptyPolls === 0 && line !== lastLine) out.note(line)
    lastLine = line
    if (emptyPolls === 0 && Date.now() >= deadlineMs) throw timedOut(now, waitSeconds)
    await delay(POLL_INTERVAL_MS)
  }
  // The jobs of a lost worker are requeued, so waiting for this worker is pointless.
  throw new CommandError(EXIT.refused, `${worker.id} has stopped, or its heartbeats no longer arrive.`)
}

async function done(out: Invocation['out'], worker: WorkerView): Promise<ExitCode> {
  if (out.isHumanReadable) await out.write(`${worker.id} is drained; no jobs in flight.\n`)
  else await out.json(worker)
  return EXIT.ok
}

async function find(api: Invocation['api'], id: string): Promise<WorkerView | undefined> {
  return (await api.admin.workers()).find((worker) => worker.id === id)
}

function inFlight({ running, parked_calls: parkedCalls }: WorkerView): number {
  return running + (parkedCalls ?? 0)
}

function statusLine(worker: WorkerView): string {
  return `${worker.id} is draining; ${jobsInFlight(worker)}.`
}

function jobsInFlight(worker: WorkerView): string {
  const count = inFlight(worker)
  return `${count} ${count === 1 ? 'job' : 'jobs'} in flight`
}

function timedOut(worker: WorkerView, waitSeconds: number): CommandError {
  const message = `${worker.id} still has ${jobsInFlight(worker)} after ${waitSeconds} s. The drain continues.`
  return new CommandError(EXIT.refused, message, `To keep waiting: sluice drain ${worker.id} --wait ${waitSeconds}`)
}

const NOT_PERSISTENT =
  'The service has no job store, so the pause is not persistent: it affects only the processes that are running now.'

export const pause: Command = {
  summary: 'Pause a model or a pool: start no more jobs',
  help: `Usage: sluice pause model MODEL
       sluice pause pool POOL

Until sluice resume, no call or job of the model or pool starts in the whole fleet. A pause survives restarts. Running jobs finish,
durable jobs stay queued, and new calls get 503 with Retry-After. Requires a key with the admin scope.

Examples:
  sluice pause model smollm2-135m-instruct
  sluice pause pool code`,
  options: {},
  run: (invocation) => change(invocation, true),
}

export const resume: Command = {
  summary: 'Resume a paused model or pool',
  help: `Usage: sluice resume model MODEL
       sluice resume pool POOL

Ends a pause. Queued jobs start within about a second. Requires a key with the admin scope.

Example:
  sluice resume model smollm2-135m-instruct`,
  options: {},
  run: (invocation) => change(invocation, false),
}

async function change({ args, api, out }: Invocation, isPaused: boolean): Promise<ExitCode> {
  const [type, id, extra] = args
  if ((type !== 'model' && type !== 'pool') || id === undefined) {
    throw usageError('Missing argument: model MODEL or pool POOL.')
  }
  if (extra !== undefined) throw usageError(`Too many arguments: expected one ${type}, also got '${extra}'.`)
  const target = await api.admin.pause(type, id, isPaused)
  if (out.isHumanReadable) await out.write(`${isPaused ? 'Paused' : 'Resumed'} ${type} ${plain(target.id)}.\n`)
  else await out.json(target)
  if (isPaused && target.persistent === false) out.note(NOT_PERSISTENT)
  return EXIT.ok
}
