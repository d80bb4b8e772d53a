/** Runs `sluice` commands inside the test process, because the start of a process takes longer than most commands. */
import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import { main } from '#services/cli/cli.ts'
import type { ExitCode } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'
import type { Ran } from './sluice.ts'

const TERMINAL_COLUMNS = 200

/**
 * Runs a command as if its output went to a pipe. The command has only the given environment variables. Commands that read standard input or
 * react to signals cannot run here.
 */
export async function sluiceHere(
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Ran & { code: ExitCode }> {
  return await run(args, env, false)
}

/** Runs a command as if its output went to a terminal, and returns the output. */
export async function sluiceTable(args: readonly string[], env: Record<string, string>): Promise<string> {
  return (await run(args, env, true)).out
}

async function run(args: readonly string[], env: Record<string, string>, isTTY: boolean) {
  const streams = {
    out: Object.assign(new PassThrough(), { isTTY, columns: TERMINAL_COLUMNS }),
    err: new PassThrough(),
  }
  const written = Promise.all([text(streams.out), text(streams.err)])
  const code = await main(args, { streams, readConfig: () => parseConfig(env) })
  for (const stream of Object.values(streams)) stream.end()
  const [out, err] = await written
  const linesOf = () => out.split('\n').flatMap((line) => (line ? JSON.parse(line) : []))
  return {
    code,
    out,
    err,
    get lines() {
      return linesOf()
    },
  }
}
