import { setTimeout as delay } from 'node:timers/promises'
import type { WorkerView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'

/** Maximum --wait; equal to the maximum duration of a job. */
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
 * Polls the worker until two consecutive polls find no job in flight. The worker publishes jobs in slots and calls without
 * a slot separately. A job that moves between them can be missing from both in a single poll.
 *
 * @throws CommandError on timeout, or if the drain was undone
 */
async function waitUntilDrained({ api, out }: Invocation, worker: WorkerView, waitSeconds: number): Promise<ExitCode> {
  const deadlineMs = Date.now() + waitSeconds * 1_000
  let [lastLine, emptyPolls] = ['', 0]
  for (let now: WorkerView | undefined = worker; now; now = await find(api, worker.id)) {
    if (!now.draining) throw new CommandError(EXIT.refused, `The drain of ${now.id} was undone; it accepts jobs again.`)
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

/** Number of jobs in slots plus calls that wait in the worker without a slot. */
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
