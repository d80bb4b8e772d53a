import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import { request } from 'undici'

/** Maximum time from SIGTERM to the exit of a process: its drain and its shutdown. */
const LEAVE_MS = 60_000
/** Delay before an exited process is restarted, like a supervisor. */
const RESPAWN_MS = 500

/** A target of faults. Each `down` or `freeze` is followed by `up` or `thaw`. */
export interface Actor {
  readonly name: string
  /** Ends the process and waits for its exit; its ports and data remain. */
  down(signal: 'SIGTERM' | 'SIGKILL'): Promise<void>
  up(): Promise<void>
  /** Stops the process with SIGSTOP: alive, but without heartbeats. */
  freeze(): void
  thaw(): void
}

export interface RoleOptions {
  readonly name: string
  /** Empty: all roles, as `npm start` runs them. */
  readonly roles: readonly string[]
  readonly env: Readonly<Record<string, string | undefined>>
  /** File to which the output is appended. */
  readonly logFile: string
  /** Base URL for `/readyz`. */
  readonly url: string
  /** Called if the process exits without a fault, with its exit code or signal. The process is then restarted. */
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

  /** Base URL: the API of an ingress, the health server of other roles. */
  get url(): string {
    return this.#options.url
  }

  /** Returns when the process is started, ready or not: an actor that is down may delay its readiness. */
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

  /** Undefined while the process is down. */
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
