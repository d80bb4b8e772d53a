import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import { request } from 'undici'

/** How long a process may take to end after SIGTERM: its drain and its closing. */
const LEAVE_MS = 60_000
/** Pause before a process that left by itself is started again, as a supervisor does. */
const RESPAWN_MS = 500

/** Something that faults happen to. Each call of `down` and `freeze` is followed by its counterpart. */
export interface Actor {
  readonly name: string
  /** Ends it and waits until it is gone; its ports and data stay. */
  down(signal: 'SIGTERM' | 'SIGKILL'): Promise<void>
  /** Starts it again where it stopped. */
  up(): Promise<void>
  /** Stops it with SIGSTOP: alive, but silent. */
  freeze(): void
  thaw(): void
}

/** What {@link RoleActor} runs. */
export interface RoleOptions {
  readonly name: string
  /** None: all of them, as `npm start` does. */
  readonly roles: readonly string[]
  readonly env: Readonly<Record<string, string | undefined>>
  /** Where its output goes; appended to. */
  readonly logFile: string
  /** Address of its `/readyz`. */
  readonly url: string
  /** It ended though nobody asked for it, with an exit code or a signal. It is started again. */
  readonly onExit: (name: string, code: string) => void
}

/** One role of the service in a process of its own, kept running: on the same port after every end. */
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

  /** Base address, of the API for an ingress, else of its health. */
  get url(): string {
    return this.#options.url
  }

  /** Returns once the process is started, ready or not: while another actor is down it may have to wait. */
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

  /** Whether it says that it can work. */
  async isReady(): Promise<boolean> {
    try {
      const { statusCode, body } = await request(`${this.url}/readyz`, { headersTimeout: 2_000, bodyTimeout: 2_000 })
      await body.dump()
      return statusCode === 200
    } catch {
      return false
    }
  }

  /** Undefined while it does not run. */
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
