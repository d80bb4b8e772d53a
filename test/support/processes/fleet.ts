import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import type { Role } from '#services/services.ts'
import { newId } from '#shared/lib/id.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../stack.ts'
import { ENVIRONMENT } from './environment.ts'

export interface RoleProcess {
  readonly role: string
  readonly pid: number
  /** Base URL of the API, for an ingress. */
  readonly url: string
  /** Parsed log lines so far. */
  readonly log: readonly Record<string, unknown>[]
  /** Settles with the exit code, or the name of the signal. */
  readonly exited: Promise<number | string>
  kill(signal: NodeJS.Signals): void
}

/** Number of attached jobs of an ingress in a state, read from its metrics. */
export async function jobsHeld(ingress: RoleProcess, state: 'queued' | 'running'): Promise<number> {
  const headers = { authorization: `Bearer ${TEST_KEY}` }
  const text = await (await fetch(`${ingress.url}/metrics`, { headers })).text()
  const samples = text.matchAll(/^sluice_attached_jobs\{.*state="(\w+)".*\} (\d+)$/gm)
  return [...samples].reduce((sum, [, of, count]) => sum + (of === state ? Number(count) : 0), 0)
}

/** Several service processes over one Kafka. Each fleet has its own topic prefix, so that fleets do not see each other's records. */
export interface Fleet extends AsyncDisposable {
  readonly dataDir: string
  /**
   * Starts a process of one role.
   *
   * @param tree Source tree of another version of the service; default: this one
   */
  start(role: Role, settings?: Record<string, string>, tree?: string): Promise<RoleProcess>
  /** Posts to an ingress with the test key. */
  post(ingress: RoleProcess, path: string, body: unknown, init?: RequestInit): Promise<Response>
}

/**
 * Creates a fleet. Disposing kills its processes.
 *
 * @param kafka Address of the Kafka, as host:port
 */
export async function openFleet(kafka: string, models: readonly object[] = [ECHO_MODEL]): Promise<Fleet> {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-fleet-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models }))
  const env = {
    ...ENVIRONMENT,
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    KAFKA_BROKERS: kafka,
    KAFKA_PREFIX: `${newId('t', 8)}.`,
    LOG_LEVEL: 'info',
    SANDBOX: 'off',
    DRAIN_NOTICE_MS: '0',
  }
  const processes: { child: ChildProcess; exited: Promise<unknown> }[] = []
  return {
    dataDir,
    async start(role, settings = {}, tree = '.') {
      const started = startRole(role, { ...env, ...settings }, tree)
      processes.push(started)
      await until(() => started.hasExited() || started.isReady(), { withinMs: 90_000 })
      if (started.hasExited()) throw new Error(`${role} did not start: ${started.stderr()}`)
      return { ...started, url: started.url() }
    },
    post: (ingress, path, body, init) =>
      fetch(ingress.url + path, {
        ...init,
        method: 'POST',
        headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json', ...init?.headers },
        body: JSON.stringify(body),
      }),
    async [Symbol.asyncDispose]() {
      for (const { child } of processes) child.kill('SIGKILL')
      await Promise.all(processes.map(({ exited }) => exited))
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

function startRole(role: string, env: Record<string, string | undefined>, cwd = '.') {
  const child = spawn(process.execPath, ['services/main.js', role], { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
  const log: Record<string, unknown>[] = []
  let stderr = ''
  let rest = ''
  child.stderr.on('data', (chunk) => {
    stderr += chunk
  })
  child.stdout.on('data', (chunk) => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) log.push(JSON.parse(line))
  })
  let exit: number | string | undefined
  const exited = new Promise<number | string>((resolve) => {
    child.once('exit', (code, signal) => {
      exit = code ?? signal ?? 'unknown'
      resolve(exit)
    })
  })
  return {
    child,
    role,
    pid: child.pid ?? 0,
    log,
    exited,
    stderr: () => stderr,
    hasExited: () => exit !== undefined,
    isReady: () =>
      log.some((line) => line.msg === 'service ready' && (role !== 'ingress' || stderr.includes('http://'))),
    url: () => /http:\/\/[\d.:]+/.exec(stderr)?.[0] ?? '',
    kill: (signal: NodeJS.Signals) => void child.kill(signal),
  }
}
