import { userInfo } from 'node:os'
import type { Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { didYouMean } from '#services/cli/text/near.ts'
import type { KeyStore } from '#shared/keys/keys.ts'

/** What a word such as `create` does with the store of keys. */
export interface StoreAction {
  /** The options that it understands. */
  readonly options: readonly string[]
  run(store: KeyStore, args: readonly string[], invocation: Invocation): Promise<ExitCode>
}

/** Every option that all commands have. */
const GLOBAL = ['url', 'key', 'json', 'help']

/**
 * Runs what the first argument of a command says on the store itself.
 *
 * @param command The word after `sluice`.
 * @throws CommandError for a word or option that is not understood, and where the store cannot be used
 */
export async function runOnStore(
  command: string,
  actions: Readonly<Record<string, StoreAction>>,
  invocation: Invocation,
): Promise<ExitCode> {
  // With it come all adapters, which no other command needs.
  const { openKeyStore } = await import('#shared/ports.ts')
  const [word = '', ...args] = invocation.args
  const action = actionOf(command, actions, word)
  const strange = invocation.values.given().find((name) => ![...GLOBAL, ...action.options].includes(name))
  if (strange !== undefined) throw usageError(`--${strange} is not understood with ${command} ${word}.`)
  const tell = (problem: string) => invocation.out.note(problem)
  const store = await openKeyStore(invocation.config, tell).catch((error: unknown) => unreachable(error))
  try {
    return await action.run(store, args, invocation)
  } catch (error) {
    if (error instanceof CommandError) throw error
    return unreachable(error)
  } finally {
    await store.close()
  }
}

/** Who changes keys here, for the audit: the user of the system. */
export function author(): string {
  try {
    return `cli:${userInfo().username}`
  } catch {
    // A container may run as a number that has no name.
    return `cli:uid ${process.getuid?.() ?? 'unknown'}`
  }
}

function actionOf(command: string, actions: Readonly<Record<string, StoreAction>>, word: string): StoreAction {
  const action = Object.hasOwn(actions, word) ? actions[word] : undefined
  if (action) return action
  const words = Object.keys(actions)
  const all = `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`
  if (word === '') throw usageError(`${command}: ${all}?`)
  throw usageError(`${command} ${word} is not understood.`, `${didYouMean(word, words)}There are: ${all}.`)
}

/** @throws CommandError always */
function unreachable(error: unknown): never {
  const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ''
  const message = error instanceof Error ? error.message : String(error)
  throw new CommandError(
    EXIT.unreachable,
    `The key store cannot be used: ${message}${cause}`,
    'Look closer: sluice doctor',
  )
}
