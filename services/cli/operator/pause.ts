import type { Command, Invocation } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

const UNKEPT =
  'The service has no job store: the pause ends with the processes that run now, and one that starts later does not know of it.'

/** `sluice pause` */
export const pause: Command = {
  summary: 'Start nothing more of a model or a pool',
  help: `Usage: sluice pause model MODEL
       sluice pause pool POOL

Starts no more jobs of a model or a pool, in the whole fleet and over restarts, until it is resumed. What runs goes on; durable
jobs stay queued; new calls get 503 with Retry-After. Needs a key with the scope admin.

Examples:
  sluice pause model smollm2-135m-instruct
  sluice pause pool code`,
  options: {},
  run: (invocation) => change(invocation, true),
}

/** `sluice resume` */
export const resume: Command = {
  summary: 'Start jobs of a paused model or pool again',
  help: `Usage: sluice resume model MODEL
       sluice resume pool POOL

Ends what sluice pause began. What waited is started within a second or so. Needs a key with the scope admin.

Example:
  sluice resume model smollm2-135m-instruct`,
  options: {},
  run: (invocation) => change(invocation, false),
}

async function change({ args, api, out }: Invocation, isPaused: boolean): Promise<ExitCode> {
  const [what, id, more] = args
  if ((what !== 'model' && what !== 'pool') || id === undefined)
    throw usageError('Which? Give model MODEL or pool POOL.')
  if (more !== undefined) throw usageError(`One ${what} at a time; ${more} is one too many.`)
  const target = await api.admin.pause(what, id, isPaused)
  if (out.isForPeople) await out.write(`The ${what} ${plain(target.id)} is ${isPaused ? 'paused' : 'resumed'}.\n`)
  else await out.json(target)
  if (isPaused && target.kept === false) out.note(UNKEPT)
  return EXIT.ok
}
