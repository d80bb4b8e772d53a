import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import { request } from 'undici'

/** Maximum time from SIGTERM to the exit of a process: its drain and its shutdown. */
const LEAVE_MS = 60_000
/** Delay after which an exited process is restarted, as a supervisor does. */
const RESPAWN_MS = 500

/**
 * A process of the cluster that a planned fault can kill, restart or freeze. The fault calls `up` after each `down`, and `thaw` after each
 * `freeze`.
 */
export interface Actor {
  readonly name: string
  /** Stops the process and waits for its exit. The ports and data are kept for the restart. */
  down(signal: 'SIGTERM' | 'SIGKILL'): Promise<void>
  up(): Promise<void>
  /** Stops the process with SIGSTOP: the process exists, but sends no heartbeats. */
  freeze(): void
  thaw(): void
}

export interface RoleOptions {
  readonly name: string
  /** Roles of the process. If empty, then one process runs all roles, as with `npm start`. */
  readonly roles: readonly string[]
  readonly env: Readonly<Record<string, string | undefined>>
  /** File to which the output is appended. */
  readonly logFile: string
  /** Base URL for `/readyz`. */
  readonly url: string
  /** Called with the exit code or signal if the process exits although no fault hit it. The process is then restarted. */
  readonly onExit: (name: string, code: string) => void
}

/** One role of the service in a child process, restarted on the same port after every exit. */
export class RoleActor implements Actor {
  readonly #options: RoleOptions
  #child: ChildProcess | undefined
  #isWanted = false
  #respawn: NodeJS.Timeout | undefined

  constructor(options: RoleOptions) {
    this.#options = options
  }

  get name(): string {
    return this.#options.name
  }

  /** Base URL of the API for an ingress; base URL of the health server for any other role. */
  get url(): string {
    return this.#options.url
  }

  /** Starts the process and returns at once. The process may become ready much later, for example because the broker is down. */
  async up(): Promise<void> {
    this.#isWanted = true
    this.#spawn()
  }

  async down(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    this.#isWanted = false
    clearTimeout(this.#respawn)
    const child = this.#child
    if (!child || child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill(signal)
    const impatient = setTimeout(() => child.kill('SIGKILL'), LEAVE_MS)
    await exited
    clearTimeout(impatient)
  }

  freeze(): void {
    this.#child?.kill('SIGSTOP')
  }

  thaw(): void {
    this.#child?.kill('SIGCONT')
  }

  async isReady(): Promise<boolean> {
    try {
      const { statusCode, body } = await request(`${this.url}/readyz`, { headersTimeout: 2_000, bodyTimeout: 2_000 })
      await body.dump()
      return statusCode === 200
    } catch {
      return false
    }
  }

  /** Process id; undefined while the process is down. */
  get pid(): number | undefined {
    return this.#child?.exitCode === null && this.#child.signalCode === null ? this.#child.pid : undefined
  }

  #spawn(): void {
    const { roles, env, logFile } = this.#options
    const log = openSync(logFile, 'a')
    const child = spawn(process.execPath, ['services/main.js', ...roles], { env, stdio: ['ignore', log, log] })
    closeSync(log)
    this.#child = child
    child.once('exit', (code, signal) => {
      if (!this.#isWanted || child !== this.#child) return
      this.#options.onExit(this.name, String(code ?? signal))
      this.#respawn = setTimeout(() => this.#isWanted && this.#spawn(), RESPAWN_MS)
    })
  }
}
