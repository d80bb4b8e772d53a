import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { startIngress } from '#services/ingress/ingress.ts'
import type { SocketBounds } from '#services/ingress/ws/frames.ts'
import { ROLES, SERVICES } from '#services/services.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { parseConfig } from '#shared/config/config.ts'
import { newId } from '#shared/lib/id.ts'
import { type Log, openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'

/** The API key of every test stack. */
export const TEST_KEY = 'sk-test-0123456789'

/** A running service for one test. Dispose it with `await using`. */
export interface Stack extends AsyncDisposable {
  readonly url: string
  readonly dataDir: string
  /** The broker of the service. Tests use it to publish records that no HTTP request can create. */
  readonly broker: Broker
  /** Posts JSON with the test key. */
  post(path: string, body: unknown, init?: RequestInit): Promise<Response>
  get(path: string, init?: RequestInit): Promise<Response>
}

export interface StackOptions {
  /** Address of a Kafka. If unset, then the service uses the embedded broker. */
  readonly kafka?: string | undefined
  /** Entries of models.yaml; default: echo-1. */
  readonly models?: readonly object[]
  /** Settings by their environment names. */
  readonly settings?: Readonly<Record<string, string>>
  /** Bounds of WebSockets; default: those in docs/guides/websocket.md. */
  readonly sockets?: Partial<SocketBounds>
  /** Sandboxes for code; default: none. */
  readonly sandboxes?: readonly LoadAdapter[]
  /** Log of the service; default: nothing is logged. */
  readonly log?: Log
  /** Data directory that the caller creates and deletes. Default: a new directory, which is deleted at the end. */
  readonly dataDir?: string
}

/** A model on the echo engine, which executes scripts in the prompt. The model accepts every type of input. */
export const ECHO_MODEL = {
  id: 'echo-1',
  engine: { type: 'echo' },
  capabilities: { images: true, audio: true, files: true, reasoning: true },
  limits: { context_tokens: 1_000_000, max_output_tokens: 100_000, default_output_tokens: 100_000, choices: 128 },
}

/** Starts every role in this process on free ports, with its own topics and data directory. */
export async function startStack(options: StackOptions = {}): Promise<Stack> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'sluice-test-')))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: options.models ?? [ECHO_MODEL] }))
  const config = parseConfig({
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    // Most tests check the rights of an ordinary project key, so the first key gets no admin rights.
    FIRST_KEY_ADMIN: 'false',
    LOG_LEVEL: process.env.TEST_LOG ?? 'silent',
    KAFKA_BROKERS: options.kafka,
    KAFKA_PREFIX: options.kafka && `${newId('t', 8)}.`,
    ...options.settings,
  })
  const log = options.log ?? openLog(config.logLevel, 'test')
  const onFatal = (error: unknown) => {
    throw error
  }
  const ports = await openPorts(config, log, 'test', true, onFatal, options.sandboxes ?? [])
  const services = [portsService(ports)]
  for (const role of ROLES) if (role !== 'ingress') services.push(await SERVICES[role].start(ports))
  const ingress = await startIngress(ports, options.sockets)
  const url = `http://127.0.0.1:${ingress.port}`
  const request = (method: string, path: string, init: RequestInit = {}, body?: unknown) => {
    const headers = new Headers(init.headers)
    if (!headers.has('authorization')) headers.set('authorization', `Bearer ${TEST_KEY}`)
    if (body !== undefined) headers.set('content-type', 'application/json')
    return fetch(url + path, { ...init, method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) })
  }
  return {
    url,
    dataDir,
    broker: ports.broker,
    post: (path, body, init) => request('POST', path, init, body),
    get: (path, init) => request('GET', path, init),
    async [Symbol.asyncDispose]() {
      await stopAll([...services, ingress], 1_000, log)
      if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true })
    },
  }
}

/** Maximum interval between two checks of {@link until}. */
const POLL_INTERVAL_MS_MAX = 100

/**
 * Polls until a condition holds. The interval grows, because a check may cost a request or a database connection on a busy machine.
 *
 * @throws Error after `withinMs`, with the source text of the condition
 */
export async function until<T>(
  condition: () => T | Promise<T>,
  options: { withinMs?: number } = {},
): Promise<NonNullable<T>> {
  const startedAt = Date.now()
  const deadline = startedAt + (options.withinMs ?? 20_000)
  for (;;) {
    const value = await condition()
    if (value) return value
    if (Date.now() > deadline) throw new Error(`condition never held: ${condition}`)
    const lookMs = Math.min(POLL_INTERVAL_MS_MAX, Math.max(10, (Date.now() - startedAt) / 20))
    await new Promise((resolve) => setTimeout(resolve, lookMs))
  }
}
