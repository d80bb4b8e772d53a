import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection } from '../calls/connection.ts'
import { sluice, urlOf } from '../calls/targets.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes, type Running } from '../machine/processes.ts'
import { cpuMs, residentMib } from '../machine/usage.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
/** Between two tokens of a stream: most streams wait for their model most of the time. */
const TOKEN_MS = 5_000
/** Streams that are opened at once. */
const OPENING = 100
const READY_MS = 60_000

/** Together they have room for the calls beside the streams, too. */
const WORKERS = 2

/** What open streams cost one ingress, and its workers together. */
export interface StreamsCost {
  readonly streams: number
  /** Seconds until all of them had their first token. */
  readonly openSeconds: number
  readonly tokensPerSecond: number
  /** Memory for each stream, in KiB. */
  readonly ingressKib: number
  readonly workerKib: number
  /** In percent of a core, all streams together. */
  readonly ingressCpu: number
  readonly workerCpu: number
  /** Milliseconds that a call beside them took, the slowest of ten. */
  readonly besideMs: number
  readonly failures: number
}

/** How it is measured. */
export interface StreamsOptions {
  readonly kafka: Kafka
  readonly dir: string
  readonly streams: readonly number[]
  readonly seconds: number
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}

/** Opens so many streams of `echo-1` through one ingress and two workers, and keeps them open while it measures. */
export async function measureStreams(options: StreamsOptions): Promise<StreamsCost[]> {
  const costs: StreamsCost[] = []
  for (const streams of options.streams) {
    options.signal.throwIfAborted()
    const cost = await measureOnce(options, streams)
    options.print(`${streams} streams: ${cost.ingressKib.toFixed(0)} KiB each, ${cost.failures} failed`)
    costs.push(cost)
  }
  return costs
}

async function measureOnce({ kafka, dir, seconds }: StreamsOptions, streams: number): Promise<StreamsCost> {
  await using processes = new Processes(dir, undefined)
  const [ingress, ...workers] = await startRoles(processes, kafka, streams)
  const url = urlOf(ingress)
  await untilAnswered(url)
  const ofWorkers = (figure: (pid: number) => number) => workers.reduce((sum, { pid }) => sum + figure(pid), 0)
  const memory = () => [residentMib(ingress.pid), ofWorkers(residentMib)] as const
  const idle = memory()
  const open = new Streams(url)
  const openSeconds = await open.begin(streams)
  const [tokens, cpu, startedAt] = [open.tokens, [cpuMs(ingress.pid), ofWorkers(cpuMs)] as const, performance.now()]
  await sleep(seconds * 1_000)
  const ms = performance.now() - startedAt
  const used = [cpuMs(ingress.pid) - cpu[0], ofWorkers(cpuMs) - cpu[1]] as const
  const full = memory()
  const tokensPerSecond = ((open.tokens - tokens) / ms) * 1_000
  const besideMs = await slowestOf(url, 10)
  const { failures } = open
  open.end()
  const kib = (index: 0 | 1) => ((full[index] - idle[index]) * 1_024) / streams
  return {
    ...{ streams, openSeconds, tokensPerSecond, besideMs, failures },
    ...{ ingressKib: kib(0), workerKib: kib(1) },
    ...{ ingressCpu: (used[0] / ms) * 100, workerCpu: (used[1] / ms) * 100 },
  }
}

async function startRoles(processes: Processes, kafka: Kafka, streams: number): Promise<[Running, ...Running[]]> {
  const modelsFile = join(processes.dir, 'echo.yaml')
  writeFileSync(modelsFile, 'models:\n  - id: echo-1\n    engine: { type: echo }\n')
  const env = {
    ...{ PORT: '0', DATA_DIR: join(processes.dir, 'streams'), MODELS_FILE: modelsFile, SLUICE_API_KEY: KEY },
    ...{ KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: `bench-${process.pid}-${streams}.` },
    ...{ INFERENCE_SLOTS: '6000', JOBS_MAX: String(streams + 100) },
  }
  const ingress = await processes.node(sluice('streams-ingress', ['ingress'], env))
  const workers = Array.from({ length: WORKERS }, (_, i) =>
    processes.node({ ...sluice(`streams-inference-${i}`, ['inference'], env), addressOn: 'none' }),
  )
  return [ingress, ...(await Promise.all(workers))]
}

/** Streams that stay open. */
class Streams {
  readonly #url: URL
  readonly #connections: Connection[] = []
  /** Pieces that came, of all streams. */
  tokens = 0
  failures = 0
  #isEnding = false

  constructor(url: URL) {
    this.#url = url
  }

  /** Opens so many. @returns Seconds until each had its first piece, or had failed */
  async begin(count: number): Promise<number> {
    const startedAt = performance.now()
    let left = count
    const opener = async () => {
      while (left-- > 0) await this.#beginOne()
    }
    await Promise.all(Array.from({ length: OPENING }, opener))
    return (performance.now() - startedAt) / 1_000
  }

  end(): void {
    this.#isEnding = true
    for (const connection of this.#connections) connection.close()
  }

  async #beginOne(): Promise<void> {
    const connection = await Connection.open(this.#url)
    this.#connections.push(connection)
    const { promise, resolve } = Promise.withResolvers<void>()
    const request = requestOf(this.#url, `!echo tokens=100 delay_ms=${TOKEN_MS}`, true)
    const onBody = () => {
      this.tokens++
      resolve()
    }
    const fail = () => {
      if (!this.#isEnding) this.failures++
      resolve()
    }
    connection.send(request, onBody).then((status) => status === 200 || fail(), fail)
    await promise
  }
}

async function slowestOf(url: URL, calls: number): Promise<number> {
  let slowest = 0
  for (let i = 0; i < calls; i++) {
    const startedAt = performance.now()
    const connection = await Connection.open(url)
    await connection.send(requestOf(url, 'beside', false))
    connection.close()
    slowest = Math.max(slowest, performance.now() - startedAt)
  }
  return slowest
}

async function untilAnswered(url: URL): Promise<void> {
  const deadline = Date.now() + READY_MS
  for (;;) {
    const connection = await Connection.open(url)
    const status = await connection.send(requestOf(url, 'ready', false)).catch(() => 0)
    connection.close()
    if (status === 200) return
    if (Date.now() > deadline) throw new Error(`the ingress gave no answer within ${READY_MS} ms: ${status}`)
    await sleep(100)
  }
}

function requestOf(url: URL, content: string, stream: boolean): Buffer {
  const body = JSON.stringify({ model: 'echo-1', stream, messages: [{ role: 'user', content }] })
  const head = [
    'POST /v1/chat/completions HTTP/1.1',
    `Host: ${url.host}`,
    `Authorization: Bearer ${KEY}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
  ]
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`)
}
