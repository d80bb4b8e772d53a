/** A `sluice` command in this process, without the start of a process, which takes longer than most commands. */
import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import { main } from '#services/cli/cli.ts'
import type { ExitCode } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'
import type { Ran } from './sluice.ts'

const TERMINAL_COLUMNS = 200

/** Runs a command with piped output and only the given settings. Commands that read standard input or signals need a process of their own. */
export async function sluiceHere(
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Ran & { code: ExitCode }> {
  return await run(args, env, false)
}

/** Output of a command on a terminal. */
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
