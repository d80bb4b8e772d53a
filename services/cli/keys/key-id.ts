import { CommandError, EXIT, usageError } from '#services/cli/failure.ts'
import { ENV_KEY_ID } from './permissions.ts'

export function noSuchKey(id: string): CommandError {
  if (id !== ENV_KEY_ID) {
    return new CommandError(EXIT.refused, `No key has the id ${id}.`, 'To list keys: sluice keys list')
  }
  const next = `Change the setting, or create another key of its project: sluice keys create --project ${ENV_KEY_ID}`
  return new CommandError(EXIT.refused, `${id} is SLUICE_API_KEY, which only the setting can change.`, next)
}

/** The only argument. @throws CommandError for none or several */
export function keyIdOf(args: readonly string[]): string {
  const [id, extra] = args
  if (id !== undefined && extra === undefined) return id
  throw usageError('Expected exactly one argument: the ID of a key.', 'To list keys: sluice keys list')
}

export function nothingToChange(): CommandError {
  return usageError('Nothing to update.', 'Use at least one option, such as --name or --requests-per-minute.')
}
