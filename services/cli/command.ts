import type { ParseArgsOptionsConfig } from 'node:util'
import type { Config } from '#shared/config/config.ts'
import type { JobsApi } from './client/jobs-api.ts'
import { type ExitCode, usageError } from './failure.ts'
import type { Output } from './text/output.ts'

/** The values of a command's options, by name: `values.text('name')`. */
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

  /** The parts of one option with commas in it; undefined when it was not given. @throws CommandError when none is left */
  parts(name: string): string[] | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const parts = text.split(',').map((part) => part.trim())
    if (parts.some((part) => part === '')) throw usageError(`--${name} ${text}: give values with commas between them.`)
    return parts
  }

  /** The names of the options that were given. */
  given(): string[] {
    return Object.keys(this.#values)
  }

  has(name: string): boolean {
    return this.#values[name] === true
  }

  /** A whole number in a range. @throws CommandError for anything else */
  count(name: string, min: number, max: number): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const count = Number(text)
    if (!/^\d+$/.test(text) || count < min || count > max) {
      throw usageError(`--${name} ${text}: give a whole number from ${min} to ${max}.`)
    }
    return count
  }
}

/** What a command works with. */
export interface Invocation {
  readonly values: Values
  readonly args: readonly string[]
  readonly config: Config
  readonly out: Output
  /** The service at `--url`, with the key of `--key`. */
  readonly api: JobsApi
}

/** One word after `sluice`. */
export interface Command {
  /** One line in the list of commands. */
  readonly summary: string
  /** From `Usage:` to the examples. */
  readonly help: string
  readonly options: ParseArgsOptionsConfig
  run(invocation: Invocation): Promise<ExitCode>
  /** What it does where the settings cannot be used; absent: they are refused. @param problems One sentence each */
  runWithoutSettings?(problems: readonly string[], values: Values, out: Output): Promise<ExitCode>
}

/** The only argument of a command that takes one. @throws CommandError when there is none or more */
export function onlyArgument(args: readonly string[], name: string): string {
  const [first, second] = args
  if (first === undefined) throw usageError(`${name} is missing.`)
  if (second !== undefined) throw usageError(`One ${name} at a time; ${second} is one too many.`)
  return first
}

/** Refuses arguments of a command that takes none. @throws CommandError */
export function noArguments(args: readonly string[]): void {
  if (args[0] !== undefined) throw usageError(`${args[0]} is not understood here.`)
}
