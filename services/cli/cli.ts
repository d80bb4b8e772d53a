import { parseArgs } from 'node:util'
import { type Config, ConfigError, loadConfig } from '#shared/config/config.ts'
import packageJson from '../../package.json' with { type: 'json' }
import { ApiError, HttpClient, isConnectionError } from './client/http.ts'
import { JobsApi } from './client/jobs-api.ts'
import { type Command, CommandLine, type Invocation, Values } from './commands/command.ts'
import { COMMAND_GROUPS, COMMANDS } from './commands.ts'
import {
  asTyped,
  CommandError,
  didYouMean,
  EXIT,
  type ExitCode,
  FORMATS,
  type Format,
  formatHelp,
  Output,
  orList,
  printable,
  type Streams,
  similarNames,
  usageError,
} from './text/output.ts'

const GLOBAL_OPTIONS = {
  url: { type: 'string' },
  key: { type: 'string' },
  json: { type: 'boolean' },
  output: { type: 'string', short: 'o' },
  help: { type: 'boolean', short: 'h' },
} as const

const GLOBAL_HELP = `Global options, before or after the command:
  --url URL   base URL of the service (default: SLUICE_URL, or http://127.0.0.1:PORT)
  --key KEY   API key (default: SLUICE_API_KEY; other users of this machine can see a --key in the process list)
  --json      print JSON lines, even on a terminal; the same as -o json
  -o, --output FORMAT
              table, json or csv (default: table on a terminal, otherwise json);
              csv only for commands that print a list
  -h, --help  show this help

Exit codes:
  0    success
  1    the job failed or expired, doctor found a failure, or replay found a difference
  2    invalid command line or settings
  3    the job was cancelled
  4    the service cannot be reached, or responded with a server error (5xx)
  5    the service rejected the request (4xx), or the job has not finished
  130  interrupted with Ctrl-C
`

/** Renamed options: old name → new name. An old name is rejected, and the error contains the new name. */
const RENAMED_OPTIONS: Readonly<Record<string, string>> = {
  for: 'ttl',
  from: 'since',
  to: 'until',
  overlap: 'grace-period',
  'start-within': 'start-deadline',
}

/** Output streams and settings of one command run. Tests pass their own instead of those of the process. */
interface Surroundings {
  readonly streams: Streams
  /** @throws ConfigError that lists all invalid settings, not only the first */
  readonly readConfig: () => Config
}

const PROCESS: Surroundings = { streams: { out: process.stdout, err: process.stderr }, readConfig: loadConfig }

/**
 * Runs one command line.
 *
 * @param argv Arguments after `sluice`
 */
export async function main(argv: readonly string[], surroundings = PROCESS): Promise<ExitCode> {
  const { streams } = surroundings
  // A reader that closes the pipe early, such as `head`, is no error.
  streams.out.on('error', () => process.exit(EXIT.ok))
  try {
    return await dispatch(argv, surroundings)
  } catch (error) {
    return report(error, streams, findCommand(argv).name)
  }
}

async function dispatch(argv: readonly string[], surroundings: Surroundings): Promise<ExitCode> {
  const { streams } = surroundings
  if (argv[0] === '--version' || argv[0] === '-v') return print(`${packageJson.version}\n`, streams)
  const { name, rest } = findCommand(argv)
  if (name === undefined) parse({ options: {} }, rest)
  if (name === undefined || name === 'help') return help(rest, name, streams)
  const command = commandOf(name)
  const { values, positionals } = parse(command, rest)
  if (values.help === true) return print(formatHelp(`${command.help}\n\n${GLOBAL_HELP}`), streams)
  return await run(
    command,
    { values: new Values(values), args: positionals, commandLine: new CommandLine(argv) },
    surroundings,
  )
}

/** Finds the command among the arguments. Global options such as `--url` may precede the command. */
function findCommand(argv: readonly string[]): { name: string | undefined; rest: string[] } {
  const args = [...argv]
  const { tokens } = parseArgs({ args, options: GLOBAL_OPTIONS, allowPositionals: true, strict: false, tokens: true })
  const at = tokens.find(({ kind }) => kind === 'positional')?.index
  return { name: at === undefined ? undefined : args[at], rest: args.filter((_, i) => i !== at) }
}

async function run(
  command: Command,
  line: Pick<Invocation, 'values' | 'args' | 'commandLine'>,
  { streams, readConfig }: Surroundings,
): Promise<ExitCode> {
  const { values } = line
  const out = new Output(streams, formatOf(command, values))
  const config = configOrError(readConfig)
  if (config instanceof ConfigError) {
    if (command.runWithoutSettings) return await command.runWithoutSettings(config.problems, values, out)
    throw config
  }
  const url = values.text('url') ?? config.url
  if (!/^https?:$/.test(URL.parse(url)?.protocol ?? '')) {
    throw usageError(`--url must be an http or https URL, such as http://127.0.0.1:8080; got '${url}'.`)
  }
  const http = new HttpClient(url, values.text('key') ?? config.sluiceApiKey)
  try {
    return await command.run({ ...line, config, out, api: new JobsApi(http) })
  } catch (error) {
    throw withKeyHint(error, values.text('key'), command)
  } finally {
    await http.close()
  }
}

/** Adds a hint to the error about a refused key if the option `--key` has the id of a key instead of the key. */
function withKeyHint(error: unknown, key: string | undefined, { options }: Command): unknown {
  if (!(error instanceof ApiError && error.status === 401) || !key?.startsWith('key_')) return error
  const use = 'key-id' in options ? ` To show only the calls of this key: --key-id ${printable(key)}` : ''
  return new ApiError(401, error.code, error.message, `--key expects the API key itself, not the id of a key.${use}`)
}

function formatOf({ isList }: Command, values: Values): Format | undefined {
  const asked = values.text('output')
  if (asked === undefined) return values.has('json') ? 'json' : undefined
  const format = FORMATS.find((one) => one === asked)
  if (!format) throw usageError(`--output must be ${orList(FORMATS)}; got '${asked}'.`)
  if (format === 'csv' && !isList)
    throw usageError('--output csv needs a command that prints a list.', 'Use table or json.')
  if (format !== 'json' && values.has('json')) throw usageError(`Use either --json or --output ${format}, not both.`)
  return format
}

function configOrError(readConfig: () => Config): Config | ConfigError {
  try {
    return readConfig()
  } catch (error) {
    if (error instanceof ConfigError) return error
    throw error
  }
}

function parse(command: Pick<Command, 'options'>, args: string[]) {
  try {
    return parseArgs({ args, allowPositionals: true, options: { ...command.options, ...GLOBAL_OPTIONS } })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    const [, unknown] = /^Unknown option '--([^']+)'/.exec(message) ?? []
    throw unknown === undefined ? usageError(message) : unknownOption(unknown, Object.keys(command.options))
  }
}

function unknownOption(name: string, commandOptions: readonly string[]): CommandError {
  const renamed = Object.hasOwn(RENAMED_OPTIONS, name) ? RENAMED_OPTIONS[name] : undefined
  if (renamed !== undefined && commandOptions.includes(renamed)) {
    return usageError(`Option '--${name}' was renamed.`, `Use --${renamed}.`)
  }
  const similar = similarNames(name, [...commandOptions, ...Object.keys(GLOBAL_OPTIONS)]).map((option) => `--${option}`)
  return usageError(
    `Unknown option '--${name}'.`,
    similar.length > 0 ? `Did you mean ${similar.join(' or ')}?` : undefined,
  )
}

/** Names that users may try for a command, with the name of the command for the error message. */
const OTHER_NAMES: Readonly<Record<string, string>> = { request: 'logs', requests: 'logs', calls: 'logs' }

function commandOf(name: string): Command {
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) {
    const other = Object.hasOwn(OTHER_NAMES, name) ? OTHER_NAMES[name] : undefined
    const meant = other === undefined ? didYouMean(name, Object.keys(COMMANDS)) : `Did you mean ${other}? `
    const next = `${meant}For all commands: sluice --help`
    throw usageError(`Unknown command '${name}'.`, next)
  }
  return command
}

function help(rest: readonly string[], command: string | undefined, streams: Streams): ExitCode {
  const [topic] = rest
  if (command !== undefined && topic !== undefined)
    return print(formatHelp(`${commandOf(topic).help}\n\n${GLOBAL_HELP}`), streams)
  const lineOf = (name: string) => `  ${name.padEnd(15)}  ${COMMANDS[name]?.summary}\n`
  const groups = Object.entries(COMMAND_GROUPS).map(
    ([title, commands]) => `${title}:\n${Object.keys(commands).map(lineOf).join('')}\n`,
  )
  const text = `Usage: sluice COMMAND [options]\n\n${groups.join('')}For options and examples: sluice COMMAND --help\n`
  const isRequested = command !== undefined || rest.some((option) => option === '--help' || option === '-h')
  if (isRequested) return print(formatHelp(`${text}\n${GLOBAL_HELP}`), streams)
  streams.err.write(asTyped(formatHelp(text)))
  return EXIT.usage
}

function print(text: string, { out }: Streams): ExitCode {
  out.write(asTyped(text))
  return EXIT.ok
}

/** Prints an expected error with its remedy. Any other error is a defect and is rethrown with its stack trace. */
function report(error: unknown, { err }: Streams, name = 'COMMAND'): ExitCode {
  if (error instanceof ConfigError) {
    err.write(`Invalid settings:\n${error.problems.map((line) => `  - ${line}\n`).join('')}`)
    return EXIT.usage
  }
  if (!(error instanceof CommandError) && isConnectionError(error)) {
    err.write(`The connection to the service broke: ${error.message || 'no reason given'}. Try again.\n`)
    return EXIT.unreachable
  }
  if (!(error instanceof CommandError)) throw error
  const help =
    error.exit === EXIT.usage
      ? `For help: sluice ${Object.hasOwn(COMMANDS, name) ? name : 'COMMAND'} --help`
      : undefined
  const next = error.next ?? help
  err.write(asTyped(`${error.message}\n${next ? `${next}\n` : ''}`))
  return error.exit
}
