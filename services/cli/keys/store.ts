import { userInfo } from 'node:os'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { didYouMean } from '#services/cli/text/similar-names.ts'
import type { KeyStore } from '#shared/keys/keys.ts'

export interface StoreAction {
  /** Names of the supported options, except global ones. */
  readonly options: readonly string[]
  run(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode>
}

const GLOBAL_OPTIONS = ['url', 'key', 'json', 'help']

/**
 * Runs the action in the first argument of a command on the key store.
 *
 * @param command The command, such as `keys`.
 * @throws CommandError for an unknown action or unsupported option, or if the key store is unavailable
 */
export async function runOnStore(
  command: string,
  actions: Readonly<Record<string, StoreAction>>,
  invocation: Invocation,
): Promise<ExitCode> {
  // Imported on demand: the module loads all adapters, and no other command needs them.
  const { openKeyStore } = await import('#shared/ports.ts')
  const [name = '', ...args] = invocation.args
  const action = actionOf(command, actions, name)
  const unsupported = invocation.values.given().find((option) => {
    return ![...GLOBAL_OPTIONS, ...action.options].includes(option)
  })
  if (unsupported !== undefined) throw usageError(`${command} ${name} does not support --${unsupported}.`)
  const warn = (problem: string) => invocation.out.note(problem)
  const store = await openKeyStore(invocation.config, warn).catch((error: unknown) => unavailable(error))
  try {
    return await action.run(store, args, invocation)
  } catch (error) {
    if (error instanceof CommandError) throw error
    return unavailable(error)
  } finally {
    await store.close()
  }
}

export function author(): string {
  try {
    return `cli:${userInfo().username}`
  } catch {
    // In a container the user id may have no name.
    return `cli:uid ${process.getuid?.() ?? 'unknown'}`
  }
}

function actionOf(command: string, actions: Readonly<Record<string, StoreAction>>, name: string): StoreAction {
  const action = Object.hasOwn(actions, name) ? actions[name] : undefined
  if (action) return action
  const names = Object.keys(actions)
  const all = `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`
  if (name === '') throw usageError(`Missing action after ${command}: ${all}.`)
  throw usageError(`Unknown action '${name}' of ${command}.`, `${didYouMean(name, names)}Valid actions: ${all}.`)
}

function unavailable(error: unknown): never {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ''
  const message = error instanceof Error ? error.message : String(error)
  throw new CommandError(
    EXIT.unreachable,
    `The key store is unavailable: ${message}${cause}`,
    'For a diagnosis: sluice doctor',
  )
}
