import { CommandError, EXIT, usageError } from '#services/cli/failure.ts'
import { FIXED_KEY_ID } from './rights.ts'

/** The failure for an id that is none of a key. */
export function noSuchKey(id: string): CommandError {
  if (id !== FIXED_KEY_ID) {
    return new CommandError(EXIT.refused, `There is no key ${id}.`, 'See which there are: sluice keys list')
  }
  const next = `For others of its project: sluice keys create --project ${FIXED_KEY_ID}`
  return new CommandError(EXIT.refused, `${id} is SLUICE_API_KEY: it changes with that setting.`, next)
}

/** The id that a command is about. @throws CommandError when there is none or more */
export function keyIdOf(args: readonly string[]): string {
  const [id, more] = args
  if (id !== undefined && more === undefined) return id
  throw usageError('Give the id of one key.', 'See them: sluice keys list')
}

/** The failure of an update that says nothing. */
export function nothingAsked(): CommandError {
  return usageError('There is nothing to change.', 'Say what, such as --name or --requests-per-minute.')
}
