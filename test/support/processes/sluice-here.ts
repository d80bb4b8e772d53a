/** A `sluice` command in this process, without the start of a process, which takes longer than most commands. */
import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import { parseArgs } from 'node:util'
import { HttpClient } from '#services/cli/client/http.ts'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { Values } from '#services/cli/commands/command.ts'
import { COMMANDS } from '#services/cli/commands.ts'
import { CommandError, type ExitCode, Output } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'

const TERMINAL_COLUMNS = 200

/** Runs a command with piped output and only the given settings. @throws Error for an unknown option */
export async function sluiceHere(
  args: readonly string[],
  env: Record<string, string>,
): Promise<{ code: ExitCode; lines: Record<string, unknown>[]; err: string }> {
  const { code, out, err } = await run(args, env, false)
  return { code, lines: out.split('\n').flatMap((line) => (line ? JSON.parse(line) : [])), err }
}

/** Output of a command on a terminal. @throws Error for an unknown option */
export async function sluiceTable(args: readonly string[], env: Record<string, string>): Promise<string> {
  return (await run(args, env, true)).out
}

async function run([name = '', ...args]: readonly string[], env: Record<string, string>, isTTY: boolean) {
  const command = COMMANDS[name]
  if (!command) throw new Error(`There is no command ${name}.`)
  const { values, positionals } = parseArgs({ args, allowPositionals: true, options: command.options })
  const out = Object.assign(new PassThrough(), { isTTY, columns: TERMINAL_COLUMNS })
  const err = new PassThrough()
  const said = Promise.all([text(out), text(err)])
  const config = parseConfig(env)
  const http = new HttpClient(env.SLUICE_URL ?? 'http://127.0.0.1:1', config.sluiceApiKey)
  const api = new JobsApi(http)
  const invocation = {
    values: new Values(values),
    args: positionals,
    config,
    out: new Output({ out, err }),
    api,
  }
  const code = await command.run(invocation).catch((error: unknown) => {
    if (!(error instanceof CommandError)) throw error
    err.write(`${error.message}\n${error.next ?? ''}\n`)
    return error.exit
  })
  for (const stream of [out, err]) stream.end()
  await http.close()
  const [shown, notes] = await said
  return { code, out: shown, err: notes }
}
