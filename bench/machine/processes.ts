/*
 * Starts and stops the processes of a benchmark run. Each process is stopped by its pid: with SIGTERM, and after 10 s with SIGKILL. If this process
 * exits early, its exit handler kills the others.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { promisify } from 'node:util'

const READY_TIMEOUT_MS = 60_000
const STOP_TIMEOUT_MS = 10_000
const COMMAND_TIMEOUT_MS = 1_800_000

export interface Start {
  readonly name: string
  /** Path relative to the folder `bench`. */
  readonly script: string
  readonly args?: readonly string[]
  readonly env?: Record<string, string>
  readonly addressOn: 'stdout' | 'stderr' | 'none'
  readonly nodeFlags?: readonly string[]
  readonly isProfiled?: boolean
}

export interface Running {
  readonly name: string
  readonly pid: number
  readonly url: URL | undefined
  readonly startSeconds: number
}

export class Processes implements AsyncDisposable {
  /** Working directory of each process, which contains the logs. No `.env` exists there, so none is read. */
  readonly dir: string
  readonly #profileDir: string | undefined
  readonly #children = new Set<ChildProcess>()

  constructor(dir: string, profileDir: string | undefined) {
    this.dir = dir
    this.#profileDir = profileDir
    process.once('exit', () => {
      for (const child of this.#children) child.kill('SIGKILL')
    })
  }

  async node(start: Start): Promise<Running> {
    const { name, addressOn } = start
    const startedAt = performance.now()
    const script = resolve(import.meta.dirname, '..', start.script)
    const log = openSync(join(this.dir, `${name}.log`), 'a')
    const output = (stream: 'stdout' | 'stderr') => (addressOn === stream ? 'pipe' : log)
    const child = spawn(process.execPath, [...this.#flagsOf(start), script, ...(start.args ?? [])], {
      cwd: this.dir,
      // The measured service gets the environment that `npm start` sets, including MALLOC_MMAP_THRESHOLD_.
      env: {
        ...{ PATH: process.env.PATH, HOME: process.env.HOME, MALLOC_MMAP_THRESHOLD_: '131072', SANDBOX: 'off' },
        ...start.env,
      },
      stdio: ['ignore', output('stdout'), output('stderr')],
    })
    closeSync(log)
    this.#children.add(child)
    child.once('exit', () => this.#children.delete(child))
    const piped = child.stdout ?? child.stderr
    const url = piped ? await addressIn(piped, name, child) : undefined
    return { name, pid: child.pid ?? 0, url, startSeconds: (performance.now() - startedAt) / 1_000 }
  }

  async stop(pid: number): Promise<void> {
    const child = [...this.#children].find((child) => child.pid === pid)
    if (child) await stopChild(child)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#children].map(stopChild))
  }

  #flagsOf({ name, nodeFlags = [], isProfiled }: Start): string[] {
    if (!this.#profileDir || !isProfiled) return [...nodeFlags]
    return [...nodeFlags, '--cpu-prof', `--cpu-prof-dir=${this.#profileDir}`, `--cpu-prof-name=${name}.cpuprofile`]
  }
}

async function addressIn(output: Readable, name: string, child: ChildProcess): Promise<URL> {
  const lines = createInterface({ input: output })
  const printed: string[] = []
  const found = new Promise<URL>((resolve, reject) => {
    lines.on('line', (line) => {
      printed.push(line)
      const url = /http:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0]
      if (url) resolve(new URL(url))
    })
    const fail = (problem: string) => reject(new Error(`${name} ${problem}:\n${printed.join('\n')}`))
    child.once('exit', () => setImmediate(() => fail('ended at its start')))
    setTimeout(() => fail(`printed no address within ${READY_TIMEOUT_MS} ms`), READY_TIMEOUT_MS).unref()
  })
  // The listeners stay attached. Without them, the process would block as soon as its output pipe is full.
  return await found.finally(() => printed.splice(0))
}

async function stopChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS)
  await exited
  clearTimeout(timer)
}

export function urlOf({ name, url }: Running): URL {
  if (!url) throw new Error(`${name} has no address`)
  return url
}

export async function runCommand(
  file: string,
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<string> {
  const options = { env: { ...process.env, ...env }, timeout: COMMAND_TIMEOUT_MS }
  return (await promisify(execFile)(file, args, options)).stdout.trim()
}
