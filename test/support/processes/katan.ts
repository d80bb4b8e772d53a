import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { request } from 'undici'

/** Python packages of {@link startKatan}, to be installed with `findPythonEnv('katan', KATAN)`. */
export const KATAN = ['llm-katan==0.22.0'] as const

/** Keys that the server accepts; calls with other keys are refused. */
export const KATAN_KEYS = { openai: 'katan-openai-key', anthropic: 'katan-anthropic-key' } as const

const START_MS = 60_000
const STOP_MS = 5_000

export interface Katan extends AsyncDisposable {
  /** Base URL, such as http://127.0.0.1:4711. Chat completions are under /v1, messages under /v1/messages. */
  readonly url: string
}

/**
 * Starts llm-katan, a server with the OpenAI and Anthropic APIs that echoes its input. Sluice is tested against it, because independent authors
 * wrote it.
 *
 * @param bin Directory of the Python environment with {@link KATAN}.
 * @param options Further command-line options of the server, such as `--chunk-delay-ms 20`.
 */
export async function startKatan(bin: string, options: readonly string[] = []): Promise<Katan> {
  const port = await freePort()
  const home = await mkdtemp(join(tmpdir(), 'katan-'))
  const child = spawn(
    join(bin, 'llm-katan'),
    [
      ...['--model', 'katan', '--backend', 'echo', '--providers', 'openai,anthropic', '--host', '127.0.0.1'],
      ...['--port', String(port), '--validate-keys', '--disable-dashboard', '--log-level', 'error'],
      ...['--api-keys', `openai=${KATAN_KEYS.openai},anthropic=${KATAN_KEYS.anthropic}`],
      ...['--stats-file', join(home, 'stats.json'), '--max-concurrent', '16', ...options],
    ],
    // With this variable, the server sends no requests to a model hub.
    { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, HF_HUB_OFFLINE: '1' } },
  )
  const exited = new Promise<void>((resolve) => child.once('close', () => resolve()))
  let said = ''
  child.stderr.on('data', (chunk: Buffer) => {
    said = (said + chunk.toString()).slice(-4_000)
  })
  const stop = async () => {
    child.kill('SIGTERM')
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    await exited
    clearTimeout(timer)
    await rm(home, { recursive: true, force: true })
  }
  const url = `http://127.0.0.1:${port}`
  try {
    await untilAnswers(`${url}/v1/models`, () => child.exitCode === null)
  } catch (cause) {
    await stop()
    throw new Error(`llm-katan did not start: ${said}`, { cause })
  }
  return { url, [Symbol.asyncDispose]: stop }
}

async function untilAnswers(url: string, isRunning: () => boolean): Promise<void> {
  const deadline = Date.now() + START_MS
  while (Date.now() < deadline && isRunning()) {
    const status = await request(url).then(
      async ({ statusCode, body }) => {
        await body.dump()
        return statusCode
      },
      () => undefined,
    )
    if (status !== undefined) return
    await delay(100)
  }
  throw new Error(`no answer at ${url}`)
}

/**
 * Finds a free port, because the server cannot choose one itself. If another process takes the port in between, then the start fails with an
 * error.
 */
async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}
