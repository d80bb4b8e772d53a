import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client, Pool } from 'undici'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Environment } from './environment.ts'

const LINE_CHARACTERS_MAX = 2_000

/** Maximum lines of the server that are logged per minute. Otherwise a library that warns about every audio frame could fill the disk. */
const LINES_A_MINUTE = 60
const MINUTE_MS = 60_000

/** Origin of the request URLs. All requests go to the UNIX socket, so the host name is never resolved. */
const ORIGIN = 'http://local'

const MAIN = fileURLToPath(new URL('./python/main.py', import.meta.url))
/** Maximum time in ms until the server is ready. The first start on a busy machine is slow, because the process reads 100 MB of libraries. */
const START_MS = 60_000
const POLL_MS = 50
const STOP_MS = 5_000
const CONNECTIONS = 96
/**
 * Maximum time in ms until the response headers. Unless the result is streamed, the headers follow the complete transcription, which may take hours.
 * Callers set shorter timeouts.
 */
const HEADERS_MS = 2 * 3600_000
/** Maximum pause in ms between two chunks of a response. A stream sends an event with every transcribed segment. */
const BODY_MS = 300_000

/**
 * All environment variables of the server. The server parses hostile files, so it does not inherit the variables of this process, which may contain
 * keys.
 *
 * By default, glibc keeps freed memory per thread, which was 1.3 GB for two threads with long texts. With these settings, glibc returns large blocks
 * to the system at once, and the same work needs 0.5 GB.
 */
const VARIABLES = {
  LANG: 'C.UTF-8',
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '4194304',
  MALLOC_TRIM_THRESHOLD_: '33554432',
}

export interface Limits {
  readonly memoryBytesMax: number
  readonly audioSecondsMax: number
}

export class ServerProcess {
  readonly #child: ChildProcessByStdio<Writable, null, Readable>
  readonly #runDir: string
  readonly #socketPath: string
  readonly pool: Pool
  readonly origin = ORIGIN
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
    // When the server process ends, its stdin emits EPIPE. The event is ignored, because the promise `exited` reports the end.
    child.stdin.on('error', () => {})
  }

  /**
   * Starts the server and waits until it is healthy. If the server does not become healthy, then its process is ended.
   *
   * @throws ServiceError `model_loading` if the server is not healthy within a minute, or the abort reason
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

  get isBusy(): boolean {
    return this.pool.stats.size > 0
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGTERM')
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MS)
    await this.exited
    clearTimeout(timer)
    await this.pool.destroy()
    await rm(this.#runDir, { recursive: true, force: true })
  }

  async #untilReady(signal: AbortSignal): Promise<void> {
    const gone = this.exited.then((end) => Promise.reject(new Error(`the process ended with ${end}`)))
    await Promise.race([gone, this.#poll(signal)])
  }

  async #poll(signal: AbortSignal): Promise<void> {
    // The health check has a client of its own. After a failed connection, undici's pool would count requests in flight wrongly, and `isBusy` depends
    // on this count.
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
    // If the wait was aborted, then the reason is thrown. Any other failure means that the server does not listen yet.
    signal.throwIfAborted()
    return false
  }
}

function logOutput(stderr: Readable, log: Log): void {
  let windowMs = Date.now()
  let lines = 0
  createInterface({ input: stderr }).on('line', (line) => {
    if (Date.now() - windowMs > MINUTE_MS) {
      if (lines > LINES_A_MINUTE)
        log.warn({ lines: lines - LINES_A_MINUTE }, 'dropped log lines of the local model server')
      windowMs = Date.now()
      lines = 0
    }
    lines += 1
    if (lines <= LINES_A_MINUTE) logLine(line.slice(0, LINE_CHARACTERS_MAX), log)
  })
}

function logLine(line: string, log: Log): void {
  const fields = parse(line)
  if (!fields) return log.warn({ line }, 'local model server output')
  const { msg, ...rest } = fields
  // `is_complete: false` means that the server could not apply all restrictions to its own process.
  if (rest.is_complete === false) log.warn(rest, String(msg))
  else log.info(rest, String(msg))
}

function parse(line: string): Record<string, unknown> | undefined {
  if (!line.startsWith('{"msg"')) return undefined
  try {
    return JSON.parse(line) as Record<string, unknown>
  } catch {
    return undefined
  }
}
