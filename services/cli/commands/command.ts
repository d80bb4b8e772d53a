import type { ParseArgsOptionsConfig } from 'node:util'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { type ExitCode, type Output, usageError } from '#services/cli/text/output.ts'
import type { Config } from '#shared/config/config.ts'

export class Values {
  readonly #values: Readonly<Record<string, unknown>>

  constructor(values: Readonly<Record<string, unknown>>) {
    this.#values = values
  }

  text(name: string): string | undefined {
    const value = this.#values[name]
    return typeof value === 'string' ? value : undefined
  }

  list(name: string): readonly string[] {
    const value = this.#values[name]
    return Array.isArray(value) ? value.map(String) : []
  }

  /**
   * Returns a comma-separated list, or undefined if the option is not given.
   *
   * @throws CommandError for an empty item
   */
  parts(name: string): string[] | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const parts = text.split(',').map((part) => part.trim())
    if (parts.some((part) => part === '')) {
      throw usageError(`--${name} must be a comma-separated list without empty items; got '${text}'.`)
    }
    return parts
  }

  given(): string[] {
    return Object.keys(this.#values)
  }

  has(name: string): boolean {
    return this.#values[name] === true
  }

  /**
   * Returns a whole number from `min` to `max`, or undefined if the option is not given.
   *
   * @throws CommandError for any other value
   */
  count(name: string, min: number, max: number): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const count = Number(text)
    if (!/^\d+$/.test(text) || count < min || count > max) {
      throw usageError(`--${name} must be a whole number from ${min} to ${max}; got '${text}'.`)
    }
    return count
  }
}

/** Command lines that a message may repeat for the user to paste into a shell. */
export class CommandLine {
  readonly #argv: readonly string[]

  constructor(argv: readonly string[]) {
    this.#argv = argv
  }

  /**
   * Returns the command line, quoted for a POSIX shell and without the API key.
   *
   * @param without Flags to leave out, such as `--new`
   * @param values Options to replace or add, such as `{ '--since': '1790000000' }`. An option with the value undefined is left out
   */
  text(without: readonly string[] = [], values: Readonly<Record<string, string | undefined>> = {}): string {
    const replaced = ['--key', ...Object.keys(values)]
    const words = this.#argv.filter((word, nth) => {
      const isValue = replaced.includes(this.#argv[nth - 1] ?? '')
      return !isValue && !without.includes(word) && !replaced.includes(word.replace(/=.*/s, ''))
    })
    const added = Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [name, value]))
    return ['sluice', ...words, ...added].map(quoted).join(' ')
  }
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`
}

export interface Invocation {
  readonly values: Values
  readonly args: readonly string[]
  /** The command line as typed, without the API key, so that a message can repeat it. */
  readonly commandLine: CommandLine
  readonly config: Config
  readonly out: Output
  readonly api: JobsApi
}

export interface Command {
  readonly summary: string
  /** The help page, from `Usage:` to the examples; `formatHelp` wraps it to 80 columns. */
  readonly help: string
  readonly options: ParseArgsOptionsConfig
  /** Whether each result is a row, so that the output may also be CSV; default: false. */
  readonly isList?: boolean
  run(invocation: Invocation): Promise<ExitCode>
  /** Called instead of `run` if the settings are invalid. A command without this method fails with exit code 2. */
  runWithoutSettings?(problems: readonly string[], values: Values, out: Output): Promise<ExitCode>
}

export function onlyArgument(args: readonly string[], name: string): string {
  const [first, second] = args
  if (first === undefined) throw usageError(`Missing argument: ${name}.`)
  if (second !== undefined) throw usageError(`Too many arguments: expected one ${name}, also got '${second}'.`)
  return first
}

export function noArguments(args: readonly string[]): void {
  if (args[0] !== undefined) throw usageError(`Unexpected argument: '${args[0]}'.`)
}
