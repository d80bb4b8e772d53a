import { setTimeout as delay } from 'node:timers/promises'
import type { WorkerView } from '#services/cli/client/admin-api.ts'
import { type Command, type Invocation, onlyArgument } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'

/** Longest wait for a worker to be empty: no job may run for longer. */
const WAIT_SECONDS_MAX = 7 * 86_400
/** How often a worker is looked at: its heartbeats come twice a second. */
const LOOK_MS = 1_000

/** `sluice drain` */
export const drain: Command = {
  summary: 'Let a worker take nothing more, or take jobs again',
  help: `Usage: sluice drain WORKER [--wait N]
       sluice drain WORKER --undo

Tells a worker to take nothing more. It finishes what it has and stays, drained, until it is told otherwise or ends: then it can
be stopped without that anybody notices. Needs a key with the scope admin.

Options:
  --wait N  wait up to N seconds until it has finished what it has, and say how much is left; exit code 5 when that takes longer
  --undo    let it take jobs again

Examples:
  sluice drain wrk_Qm7xT2bV9dKpZ4sR --wait 600 && echo it can be stopped
  sluice drain wrk_Qm7xT2bV9dKpZ4sR --undo`,
  options: { undo: { type: 'boolean' }, wait: { type: 'string' } },
  async run(invocation): Promise<ExitCode> {
    const { args, api, out, values } = invocation
    const id = onlyArgument(args, 'WORKER')
    const waitSeconds = values.count('wait', 0, WAIT_SECONDS_MAX)
    const isUndone = values.has('undo')
    if (isUndone && waitSeconds !== undefined) throw usageError('Give --wait or --undo, not both.')
    const worker = await api.admin.drain(id, isUndone)
    if (waitSeconds !== undefined) return await untilEmpty(invocation, worker, waitSeconds)
    if (!out.isForPeople) await out.json(worker)
    else await out.write(`${worker.draining ? sentenceOf(worker) : `${worker.id} takes jobs again.`}\n`)
    return EXIT.ok
  },
}

/** Says how many are left as they end. @throws CommandError when it has not finished in time, or takes jobs again */
async function untilEmpty({ api, out }: Invocation, worker: WorkerView, waitSeconds: number): Promise<ExitCode> {
  const endsAtMs = Date.now() + waitSeconds * 1_000
  let [said, empty] = ['', 0]
  for (let now: WorkerView | undefined = worker; now; now = await find(api, worker.id)) {
    if (!now.draining) throw new CommandError(EXIT.refused, `${now.id} takes jobs again: somebody has undone it.`)
    // What it holds without a slot is told by itself, so that one look may miss what moves between the two.
    empty = heldBy(now) === 0 ? empty + 1 : 0
    if (empty === 2) return await done(out, now)
    const sentence = sentenceOf(now)
    if (empty === 0 && sentence !== said) out.note(sentence)
    said = sentence
    if (empty === 0 && Date.now() >= endsAtMs) throw tooLong(now, waitSeconds)
    await delay(LOOK_MS)
  }
  // What it had runs elsewhere by now.
  throw new CommandError(EXIT.refused, `${worker.id} has ended, or nobody hears it any more.`)
}

async function done(out: Invocation['out'], worker: WorkerView): Promise<ExitCode> {
  if (out.isForPeople) await out.write(`${worker.id} is empty.\n`)
  else await out.json(worker)
  return EXIT.ok
}

async function find(api: Invocation['api'], id: string): Promise<WorkerView | undefined> {
  return (await api.admin.workers()).find((worker) => worker.id === id)
}

/** Jobs in slots, and calls without one. */
function heldBy({ running, aside }: WorkerView): number {
  return running + (aside ?? 0)
}

function sentenceOf(worker: WorkerView): string {
  const held = heldBy(worker)
  return `${worker.id} takes nothing more; it has ${held} ${held === 1 ? 'job' : 'jobs'} left.`
}

function tooLong(worker: WorkerView, waitSeconds: number): CommandError {
  const message = `${worker.id} still has ${heldBy(worker)} after ${waitSeconds} s. It goes on to drain.`
  return new CommandError(EXIT.refused, message, `Wait on: sluice drain ${worker.id} --wait ${waitSeconds}`)
}
