/** Runs the `sluice` command in a child process, as users and scripts do. */
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { buffer, text } from 'node:stream/consumers'
import { onTestFinished } from 'vitest'
import { ENVIRONMENT } from './environment.ts'

export const LAUNCHER = resolve('services/cli/sluice.js')

/** Exit code and output of a command. */
export interface Ran {
  code: number | null
  out: string
  err: string
  /** Each line of the output as JSON. */
  lines: Record<string, unknown>[]
}

/** Environment and input of a command. */
export interface RunOptions {
  env?: Record<string, string> | undefined
  stdin?: string
  cwd?: string
  /** Called after the start of the process. */
  onStart?: (child: ReturnType<typeof spawn>) => void
}

/** Runs `sluice` to its end. Output goes to a pipe, as in a script. */
export async function sluice(
  args: string[],
  { env = {}, stdin = '', cwd = tmpdir(), onStart }: RunOptions = {},
): Promise<Ran> {
  const child = spawn(process.execPath, [LAUNCHER, ...args], { env: { ...ENVIRONMENT, ...env }, cwd })
  onTestFinished(() => void child.kill('SIGKILL'))
  onStart?.(child)
  child.stdin.on('error', () => undefined)
  child.stdin.end(stdin)
  const exited = new Promise<number | null>((done) => child.once('exit', done))
  const [bytes, err, code] = await Promise.all([buffer(child.stdout), text(child.stderr), exited])
  // `text` would remove a byte order mark.
  const out = bytes.toString()
  const jsonLines = () => out.split('\n').filter(Boolean)
  return {
    code,
    out,
    err,
    get lines() {
      return jsonLines().map((line) => JSON.parse(line))
    },
  }
}

/** Creates an empty directory, which is deleted at the end of the test. */
export async function emptyDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-cli-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  return directory
}
