import { parseArgs } from 'node:util'
import { type Config, ConfigError, loadConfig } from '#shared/config/config.ts'
import packageJson from '../../package.json' with { type: 'json' }
import { HttpClient } from './client/http.ts'
import { JobsApi } from './client/jobs-api.ts'
import { type Command, Values } from './command.ts'
import { COMMANDS } from './commands/commands.ts'
import { CommandError, EXIT, type ExitCode, usageError } from './failure.ts'
import { layOut } from './text/help.ts'
import { nearNames } from './text/near.ts'
import { Output } from './text/output.ts'

const GLOBAL_OPTIONS = {
  url: { type: 'string' },
  key: { type: 'string' },
  json: { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
} as const

const GLOBAL_HELP = `Everywhere, before or after the command:
  --url URL   where the service is (default SLUICE_URL, or this machine at PORT, 8080)
  --key KEY   the API key (default SLUICE_API_KEY, which other users of the machine cannot see)
  --json      JSON lines also on a terminal
  -h, --help  show this help

Exit codes: 0 ok · 1 the job failed or expired, or doctor or replay found something · 2 wrong usage or settings · 3 the job was
cancelled · 4 the service cannot be reached or fails itself · 5 the service refused · 130 interrupted
`

process.exitCode = await main(process.argv.slice(2))

async function main(argv: readonly string[]): Promise<ExitCode> {
  // A reader that has enough, such as head, is no failure.
  process.stdout.on('error', () => process.exit(EXIT.ok))
  try {
    return await dispatch(argv)
  } catch (error) {
    return report(error, findCommand(argv).name)
  }
}

async function dispatch(argv: readonly string[]): Promise<ExitCode> {
  if (argv[0] === '--version' || argv[0] === '-v') return print(`${packageJson.version}\n`)
  const { name, rest } = findCommand(argv)
  if (name === undefined) parse({ options: {} }, rest)
  if (name === undefined || name === 'help') return help(rest, name)
  const command = commandOf(name)
  const { values, positionals } = parse(command, rest)
  if (values.help === true) return print(layOut(`${command.help}\n\n${GLOBAL_HELP}`))
  return await run(command, new Values(values), positionals)
}

/** The command, and what stands around it: the options of every command may stand before it. */
function findCommand(argv: readonly string[]): { name: string | undefined; rest: string[] } {
  const args = [...argv]
  const { tokens } = parseArgs({ args, options: GLOBAL_OPTIONS, allowPositionals: true, strict: false, tokens: true })
  const at = tokens.find(({ kind }) => kind === 'positional')?.index
  return { name: at === undefined ? undefined : args[at], rest: args.filter((_, i) => i !== at) }
}

async function run(command: Command, values: Values, args: readonly string[]): Promise<ExitCode> {
  const out = new Output({ out: process.stdout, err: process.stderr }, values.has('json'))
  const config = readConfig()
  if (config instanceof ConfigError) {
    if (command.runWithoutSettings) return await command.runWithoutSettings(config.problems, values, out)
    throw config
  }
  const url = values.text('url') ?? config.url
  if (!/^https?:$/.test(URL.parse(url)?.protocol ?? '')) throw usageError(`--url ${url}: give http://host:port.`)
  const http = new HttpClient(url, values.text('key') ?? config.sluiceApiKey)
  try {
    return await command.run({ values, args, config, out, api: new JobsApi(http) })
  } finally {
    await http.close()
  }
}

function readConfig(): Config | ConfigError {
  try {
    return loadConfig()
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
    const [, wrong] = /^Unknown option '--([^']+)'/.exec(message) ?? []
    if (wrong === undefined) throw usageError(message)
    const near = nearNames(wrong, Object.keys({ ...command.options, ...GLOBAL_OPTIONS })).map((name) => `--${name}`)
    throw usageError(`Unknown option '--${wrong}'.`, near.length > 0 ? `Did you mean ${near.join(' or ')}?` : undefined)
  }
}

function commandOf(name: string): Command {
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) throw usageError(`There is no command ${name}.`, `There are: ${Object.keys(COMMANDS).join(', ')}.`)
  return command
}

/** @param word `help`, where that was the command. */
function help(rest: readonly string[], word: string | undefined): ExitCode {
  const [topic] = rest
  if (word !== undefined && topic !== undefined) return print(layOut(`${commandOf(topic).help}\n\n${GLOBAL_HELP}`))
  const list = Object.entries(COMMANDS).map(([name, { summary }]) => `  ${name.padEnd(15)}  ${summary}\n`)
  const text = `Usage: sluice COMMAND [options]\n\nCommands:\n${list.join('')}\n\`sluice COMMAND --help\` says more, with examples.\n`
  const isAskedFor = word !== undefined || rest.some((option) => option === '--help' || option === '-h')
  if (isAskedFor) return print(layOut(`${text}\n${GLOBAL_HELP}`))
  process.stderr.write(layOut(text))
  return EXIT.usage
}

function print(text: string): ExitCode {
  process.stdout.write(text)
  return EXIT.ok
}

/** Says what went wrong and what to do next. A defect of ours shows where it is. */
function report(error: unknown, name = 'COMMAND'): ExitCode {
  if (error instanceof ConfigError) {
    process.stderr.write(`The settings cannot be used:\n${error.problems.map((line) => `  - ${line}\n`).join('')}`)
    return EXIT.usage
  }
  if (!(error instanceof CommandError)) throw error
  const help =
    error.exit === EXIT.usage ? `See: sluice ${Object.hasOwn(COMMANDS, name) ? name : 'COMMAND'} --help` : undefined
  const next = error.next ?? help
  process.stderr.write(`${error.message}\n${next ? `${next}\n` : ''}`)
  return error.exit
}
