/**
 * The processes a run starts, and their end. Each is stopped by its pid: with SIGTERM, after ten seconds with SIGKILL.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { promisify } from 'node:util'

const READY_MS = 60_000
const STOP_MS = 10_000

/** How a process is started. */
export interface Start {
  readonly name: string
  /** Relative to the folder `bench`. */
  readonly script: string
  readonly args: readonly string[]
  readonly env?: Record<string, string>
  /** Which output names the address it listens on; `none` for a process that listens nowhere. */
  readonly addressOn: 'stdout' | 'stderr' | 'none'
  /** What Node itself is told. */
  readonly nodeFlags?: readonly string[]
}

/** A process that runs. */
export interface Running {
  readonly pid: number
  readonly url: URL | undefined
  /** Seconds from the start until it said where it listens. */
  readonly startSeconds: number
}

/** Everything this run has started. Disposing it stops all of it. */
export class Processes implements AsyncDisposable {
  /** A folder of the run's own: working directory of every process, so that no `.env` is read, and their logs. */
  readonly dir: string
  readonly #profileDir: string | undefined
  readonly #children = new Set<ChildProcess>()

  /** @param profileDir Where Sluice's processes and the bare proxy write a CPU profile when they end; undefined: none is made. */
  constructor(dir: string, profileDir: string | undefined) {
    this.dir = dir
    this.#profileDir = profileDir
    // Whatever ends this process early must not leave the others behind.
    process.once('exit', () => {
      for (const child of this.#children) child.kill('SIGKILL')
    })
  }

  /** Starts a process with this very Node and waits until it says where it listens. @throws Error when it ends before */
  async node(start: Start): Promise<Running> {
    const startedAt = performance.now()
    const script = resolve(import.meta.dirname, '..', start.script)
    const args = [...this.#nodeFlags(start), script, ...start.args]
    const child = this.#spawn(start.name, process.execPath, args, { SANDBOX: 'off', ...start.env }, start.addressOn)
    const output = child.stdout ?? child.stderr
    const url = output ? await addressIn(output, start.name, child) : undefined
    return { pid: child.pid ?? 0, url, startSeconds: (performance.now() - startedAt) / 1_000 }
  }

  /** Starts another program, of which nothing is known but its process id. */
  program(name: string, file: string, args: readonly string[], env: Record<string, string> = {}): number {
    const child = this.#spawn(name, file, args, env, 'none')
    // Without one it could not be started; whoever waits for it says so.
    child.once('error', () => this.#children.delete(child))
    return child.pid ?? 0
  }

  /** Stops one process. */
  async stop(pid: number): Promise<void> {
    const child = [...this.#children].find((child) => child.pid === pid)
    if (child) await stopChild(child)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#children].map(stopChild))
  }

  #spawn(
    name: string,
    file: string,
    args: readonly string[],
    env: Record<string, string>,
    piped: Start['addressOn'],
  ): ChildProcess {
    const log = openSync(join(this.dir, `${name}.log`), 'a')
    const outputs = (output: 'stdout' | 'stderr') => (piped === output ? 'pipe' : log)
    const child = spawn(file, args, {
      cwd: this.dir,
      // The threshold as `npm start` sets it.
      env: { PATH: process.env.PATH, HOME: process.env.HOME, MALLOC_MMAP_THRESHOLD_: '131072', ...env },
      stdio: ['ignore', outputs('stdout'), outputs('stderr')],
    })
    closeSync(log)
    this.#children.add(child)
    child.once('exit', () => this.#children.delete(child))
    return child
  }

  #nodeFlags({ script, name, nodeFlags = [] }: Start): string[] {
    // As `npm start` runs it.
    const flags = script.endsWith('services/main.js') ? ['--expose-gc', ...nodeFlags] : [...nodeFlags]
    if (!this.#profileDir || !/(main\.js|(durable\/bare|proxy)\.ts)$/.test(script)) return flags
    return [...flags, '--cpu-prof', `--cpu-prof-dir=${this.#profileDir}`, `--cpu-prof-name=${name}.cpuprofile`]
  }
}

async function addressIn(output: Readable, name: string, child: ChildProcess): Promise<URL> {
  const lines = createInterface({ input: output })
  const said: string[] = []
  const found = new Promise<URL>((resolve, reject) => {
    lines.on('line', (line) => {
      said.push(line)
      const url = /http:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0]
      if (url) resolve(new URL(url))
    })
    child.once('exit', () => setImmediate(() => reject(new Error(`${name} ended at its start:\n${said.join('\n')}`))))
    setTimeout(() => reject(new Error(`${name} was not ready in time:\n${said.join('\n')}`)), READY_MS).unref()
  })
  // Read on after that: a pipe nobody empties would stop its writer.
  return await found.finally(() => said.splice(0))
}

async function stopChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = new Promise((resolve) => child.once('exit', resolve))
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
  await gone
  clearTimeout(timer)
}

/** Runs a command to its end. @returns What it printed. @throws Error with what it said when it fails */
export async function run(file: string, args: readonly string[], env: Record<string, string>): Promise<string> {
  const { stdout } = await promisify(execFile)(file, args, { env: { ...process.env, ...env }, timeout: 5 * READY_MS })
  return stdout.trim()
}
