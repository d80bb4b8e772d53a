import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { stringify } from 'yaml'
import { freePort } from '../support/processes/free-ports.ts'
import { until } from '../support/stack.ts'

export const RULES = 'deploy/observability/rules.yaml'
const INTERVAL_MS = 1_000
const SCRAPE_TIMEOUT_MS = 60_000
/**
 * A minute in the rules takes this many seconds in a test. With a lower value, a short pause of a busy machine would look like a fault of
 * minutes.
 */
const MINUTE_S = 3
/** Maximum threshold, in seconds, of a shortened rule that compares the age of a call or job. */
const AGE_S_MAX = 15

/**
 * Shortens the times in alert rules: each minute becomes three seconds, so that an alert fires within seconds. Three types of values change: the
 * durations `for`, the ranges such as `[5m]`, and limits of ages such as `oldest_seconds > 900`.
 *
 * Alerts about dependencies wait for 25 s instead. A process caches the result of a check for ten seconds, so with three seconds a single failed
 * check would fire the alert.
 */
export function scaledRules(rules: string): string {
  return rules
    .replaceAll(/\b(\d+)m\b/g, (_, minutes: string) => `${Number(minutes) * MINUTE_S}s`)
    .replaceAll(/(alert: SluiceDependency(?:Slow|Down)\n[\s\S]*?for: )\d+s/g, '$125s')
    .replaceAll(
      /(_oldest_seconds[^>\n]*> )(\d+)/g,
      (_, before: string, seconds: string) => before + Math.min(AGE_S_MAX, (Number(seconds) / 60) * MINUTE_S),
    )
}

/** A running Prometheus with the shortened rules of {@link scaledRules}. Dispose it. */
export interface Prometheus extends AsyncDisposable {
  /**
   * Scrapes a process from now on.
   *
   * @param url Base URL of its `/metrics`
   */
  scrape(instance: string, url: string): void
  /** Stops the scrapes of a process, as service discovery does after the process was removed. */
  forget(instance: string): void
  /** Alerts that fire now, sorted. Each is the name without the prefix `Sluice`, then the values of the labels, such as `ServerFailing model-a 0`. */
  firing(): Promise<string[]>
  /** Alerts that fired at any time of the last `seconds` seconds, sorted. */
  firedWithin(seconds: number): Promise<string[]>
  /**
   * Evaluates a PromQL query over the whole run.
   *
   * @throws Error if the query is invalid
   */
  queryRange(expr: string): Promise<{ metric: Record<string, string>; values: [number, string][] }[]>
}

/**
 * Starts Prometheus. Instead of the processes, Prometheus scrapes a relay in this test, which reads the processes' `/metrics` in the background.
 *
 * The reason: the scrape timeout of Prometheus cannot exceed its interval of one second. A process whose dependency is unreachable answers
 * `/metrics` only after two seconds, so direct scrapes would fail.
 */
export async function startPrometheus(): Promise<Prometheus> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-prometheus-'))
  const relay = await startRelay()
  await writeFile(join(directory, 'rules.yaml'), scaledRules(await readFile(RULES, 'utf8')))
  await writeFile(join(directory, 'prometheus.yaml'), stringify(configOf(relay.port)))
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  const flags = [
    `--config.file=${directory}/prometheus.yaml`,
    `--storage.tsdb.path=${directory}/data`,
    `--web.listen-address=127.0.0.1:${port}`,
  ]
  const child = spawn('prometheus', flags, { stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  child.stderr.on('data', (chunk) => {
    log = (log + chunk).slice(-10_000)
  })
  const startedAt = Date.now()
  const ask = async <T>(path: string): Promise<T> => {
    const response = await fetch(url + path, { signal: AbortSignal.timeout(SCRAPE_TIMEOUT_MS) })
    const { status, data, error } = (await response.json()) as { status: string; data: T; error: string }
    if (status !== 'success') throw new Error(`${path}: ${error}`)
    return data
  }
  const isReady = () =>
    fetch(`${url}/-/ready`).then(
      ({ ok }) => ok,
      () => false,
    )
  await until(async () => child.exitCode !== null || (await isReady()), { withinMs: 30_000 })
  if (child.exitCode !== null) throw new Error(`Prometheus did not start: ${log}`)
  return {
    ...{ scrape: relay.scrape, forget: relay.forget },
    async firing() {
      const { alerts } = await ask<{ alerts: { state: string; labels: Labels }[] }>('/api/v1/alerts')
      return namesOf(alerts.filter(({ state }) => state === 'firing').map(({ labels }) => labels))
    },
    async firedWithin(seconds) {
      const expr = `count_over_time(ALERTS{alertstate="firing"}[${Math.max(1, Math.floor(seconds))}s])`
      const { result } = await ask<{ result: { metric: Labels }[] }>(`/api/v1/query?query=${encodeURIComponent(expr)}`)
      return namesOf(result.map(({ metric }) => metric))
    },
    async queryRange(expr) {
      const range = `start=${startedAt / 1_000}&end=${Date.now() / 1_000}&step=1`
      const query = `/api/v1/query_range?${range}&query=${encodeURIComponent(expr)}`
      const { result } = await ask<{ result: Awaited<ReturnType<Prometheus['queryRange']>> }>(query)
      return result
    },
    async [Symbol.asyncDispose]() {
      await stop(child)
      await relay[Symbol.asyncDispose]()
      await rm(directory, { recursive: true, force: true })
    },
  }
}

type Labels = Readonly<Record<string, string>>

/** Labels that all alerts have in common. */
const COMMON_LABELS = new Set(['__name__', 'alertname', 'alertstate', 'severity', 'job'])

function namesOf(alerts: readonly Labels[]): string[] {
  const nameOf = (labels: Labels) => {
    const own = Object.keys(labels).filter((name) => !COMMON_LABELS.has(name))
    return [labels.alertname?.replace(/^Sluice/, ''), ...own.toSorted().map((name) => labels[name])].join(' ')
  }
  return [...new Set(alerts.map(nameOf))].toSorted()
}

function configOf(relayPort: number): object {
  const interval = `${INTERVAL_MS}ms`
  return {
    global: {
      ...{ scrape_interval: interval, scrape_timeout: interval, evaluation_interval: interval },
      external_labels: { sluice_url: 'http://127.0.0.1:8080' },
    },
    rule_files: ['rules.yaml'],
    scrape_configs: [
      {
        job_name: 'sluice',
        http_sd_configs: [{ url: `http://127.0.0.1:${relayPort}/targets`, refresh_interval: interval }],
      },
    ],
  }
}

async function startRelay() {
  /** Targets of the relay, including removed ones, because Prometheus continues to scrape a removed target for up to five seconds. */
  const targets = new Map<string, { readonly stopped: AbortController; text: string | undefined }>()
  const server = createServer((req, res) => {
    const name = req.url?.slice(1) ?? ''
    if (name === 'targets') {
      const { port } = server.address() as AddressInfo
      const listed = [...targets.keys()].filter((instance) => !targets.get(instance)?.stopped.signal.aborted)
      const groups = listed.map((instance) => ({
        targets: [`127.0.0.1:${port}`],
        labels: { instance, __metrics_path__: `/${instance}` },
      }))
      res.setHeader('content-type', 'application/json').end(JSON.stringify(groups))
    } else {
      const text = targets.get(name)?.text
      res.writeHead(text === undefined ? 503 : 200, { 'content-type': 'text/plain; version=0.0.4' }).end(text)
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const forget = (instance: string) => targets.get(instance)?.stopped.abort()
  return {
    port: (server.address() as AddressInfo).port,
    forget,
    scrape(instance: string, url: string) {
      forget(instance)
      const target = { stopped: new AbortController(), text: '' as string | undefined }
      targets.set(instance, target)
      void (async () => {
        while (!target.stopped.signal.aborted) {
          const signal = AbortSignal.any([target.stopped.signal, AbortSignal.timeout(SCRAPE_TIMEOUT_MS)])
          const text = await fetch(`${url}/metrics`, { signal }).then(
            (response) => (response.ok ? response.text() : undefined),
            () => undefined,
          )
          if (!target.stopped.signal.aborted) target.text = text
          await sleep(INTERVAL_MS / 2)
        }
      })()
    },
    async [Symbol.asyncDispose]() {
      for (const name of [...targets.keys()]) forget(name)
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

/** A TCP proxy that can delay or freeze connections. Dispose it. */
export interface FaultyProxy extends AsyncDisposable {
  readonly port: number
  /** Delay of each answer in ms. */
  delayMs: number
  /** If true, then the proxy forwards no bytes and closes no connection. */
  isFrozen: boolean
}

export async function startFaultyProxy(host: string, port: number): Promise<FaultyProxy> {
  const sockets = new Set<Socket>()
  const server = createTcpServer((client) => {
    const upstream = connect(port, host)
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', () => socket.destroy())
      socket.on('close', () => sockets.delete(socket))
    }
    client.on('close', () => upstream.destroy())
    upstream.on('close', () => client.destroy())
    client.on('data', (bytes) => void pass(bytes, upstream, 0))
    upstream.on('data', (bytes) => void pass(bytes, client, proxy.delayMs))
  })
  const pass = async (bytes: Buffer, to: Socket, delayMs: number) => {
    if (delayMs > 0) await sleep(delayMs)
    while (proxy.isFrozen && !to.destroyed) await sleep(20)
    to.write(bytes)
  }
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const proxy: FaultyProxy = {
    port: (server.address() as AddressInfo).port,
    ...{ delayMs: 0, isFrozen: false },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
  return proxy
}
