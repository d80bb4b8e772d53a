import type { Command, Invocation } from '#services/cli/command.ts'
import { EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'

const NOT_PERSISTENT =
  'The service has no job store, so the pause is not persistent: it affects only the processes that are running now.'

export const pause: Command = {
  summary: 'Pause a model or a pool: start no more jobs',
  help: `Usage: sluice pause model MODEL
       sluice pause pool POOL

Starts no more jobs of a model or a pool in the whole fleet until sluice resume. A pause survives restarts. Running jobs finish,
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
