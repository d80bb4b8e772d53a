import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client, Pool } from 'undici'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Environment } from './environment.ts'
import { logOutput } from './output.ts'

/** What calls name as the origin; the socket decides where they go. */
const ORIGIN = 'http://local'

const MAIN = fileURLToPath(new URL('./python/main.py', import.meta.url))
/** Longest time from the start to the first answer: the first start on a busy machine reads 100 MB of libraries. */
const START_MS = 60_000
const POLL_MS = 50
const STOP_MS = 5_000
/** Connections at once; the server takes 128. */
const CONNECTIONS = 96
/** A whole answer to hours of audio comes after as long as it takes; callers set their own limits below this. */
const HEADERS_MS = 2 * 3600_000
/** Silence inside a stream, which otherwise tells its progress with every segment. */
const BODY_MS = 300_000

/**
 * All of its variables. It reads hostile files: none of ours, which may be a key, shall be in its memory.
 *
 * glibc keeps what models free for each thread that ever ran one: 1.3 GB for two threads with long texts. Told to give
 * large pieces back at once it is 0.5 GB.
 */
const VARIABLES = {
  LANG: 'C.UTF-8',
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '4194304',
  MALLOC_TRIM_THRESHOLD_: '33554432',
}

/** Caps of the server. */
export interface Limits {
  /** Private memory of each of its processes. */
  readonly memoryBytesMax: number
  readonly audioSecondsMax: number
}

/** The local model server as one running process. */
export class ServerProcess {
  readonly #child: ChildProcessByStdio<Writable, null, Readable>
  readonly #runDir: string
  readonly #socketPath: string
  /** Speaks to its socket, whichever host a URL names. */
  readonly pool: Pool
  /** How URLs of it begin. */
  readonly origin = ORIGIN
  /** Settles when it has ended, for whatever reason, with the code or signal. */
  readonly exited: Promise<number | string>

  private constructor(child: ChildProcessByStdio<Writable, null, Readable>, runDir: string) {
    this.#child = child
    this.#runDir = runDir
    this.#socketPath = join(runDir, 'http.sock')
    this.pool = new Pool(ORIGIN, {
      socketPath: this.#socketPath,
      connections: CONNECTIONS,
      headersTimeout: HEADERS_MS,
      bodyTimeout: BODY_MS,
    })
    this.exited = once(child, 'exit').then(
      ([code, killedBy]) => code ?? killedBy,
      (error: Error) => error.message,
    )
    // Its end is also heard of as EPIPE, in which nobody is interested.
    child.stdin.on('error', () => {})
  }

  /**
   * Starts it and waits until it answers.
   *
   * @throws ServiceError `model_loading` when it does not within a minute, or the abort reason; nothing is left then
   */
  static async start(environment: Environment, limits: Limits, log: Log, signal: AbortSignal): Promise<ServerProcess> {
    const runDir = await mkdtemp(join(tmpdir(), 'sluice-local-'))
    const { directory, python } = environment
    const child = spawn(
      python.executable,
      [
        ...['-I', '-B', MAIN, 'serve', '--run', runDir],
        ...['--site', join(directory, 'site'), '--models', join(directory, 'models')],
        ...['--memory-bytes-max', String(limits.memoryBytesMax)],
        ...['--audio-seconds-max', String(limits.audioSecondsMax)],
      ],
      { stdio: ['pipe', 'ignore', 'pipe'], env: VARIABLES },
    )
    const server = new ServerProcess(child, runDir)
    logOutput(child.stderr, log)
    try {
      await server.#untilReady(AbortSignal.any([signal, AbortSignal.timeout(START_MS)]))
      return server
    } catch (cause) {
      await server.stop()
      signal.throwIfAborted()
      throw new ServiceError('model_loading', 'The local model server did not start.', { cause, retryAfterMs: 5_000 })
    }
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  /** Does it work on anything? */
  get isBusy(): boolean {
    return this.pool.stats.size > 0
  }

  /** Ends it, by force if it takes too long, and waits for that. Calls that run are cut. */
  async stop(): Promise<void> {
    this.#child.kill('SIGTERM')
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MS)
    await this.exited
    clearTimeout(timer)
    await this.pool.destroy()
    await rm(this.#runDir, { recursive: true, force: true })
  }

  async #untilReady(signal: AbortSignal): Promise<void> {
    const gone = this.exited.then((end) => Promise.reject(new Error(`it ended with ${end}`)))
    await Promise.race([gone, this.#poll(signal)])
  }

  async #poll(signal: AbortSignal): Promise<void> {
    // Not through the pool: after a failed connection it no longer counts all that it has in work.
    const client = new Client(ORIGIN, { socketPath: this.#socketPath })
    try {
      while (!(await isHealthy(client, signal))) await sleep(POLL_MS, undefined, { signal })
    } finally {
      await client.destroy()
    }
  }
}

async function isHealthy(client: Client, signal: AbortSignal): Promise<boolean> {
  try {
    const { statusCode, body } = await client.request({ path: '/health', method: 'GET', signal })
    await body.dump()
    return statusCode === 200
  } catch {
    // Not listening yet, or told to stop waiting.
    signal.throwIfAborted()
    return false
  }
}
