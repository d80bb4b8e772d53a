/**
 * Finds a real Postgres for tests. The first of these that exists is used: the one in DATABASE_URL; one in Docker; one from Debian's package. If
 * there is none, then the tests that need Postgres are skipped and the reason is printed.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { chown, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { freePort } from './free-ports.ts'

const run = promisify(execFile)
const IMAGE = 'postgres:17-alpine'
const DOCKER_SOCKET = '/var/run/docker.sock'
const DEBIAN = '/usr/lib/postgresql'
const START_MS = 60_000

export interface TestPostgres {
  /** `postgres://…` of a database in which tests may create schemas. */
  readonly url: string
  stop(): Promise<void>
}

/** A server that only one test uses, so that the test may stop it. */
export interface LocalPostgres extends TestPostgres, AsyncDisposable {
  /** Stops the server; port and data are kept for the restart. SIGINT requests Postgres's fast shutdown, SIGKILL simulates a crash. */
  down(signal: 'SIGINT' | 'SIGKILL'): Promise<void>
  /** Stops the server with SIGSTOP, to simulate a machine that hangs. `thaw` continues it. */
  freeze(): void
  thaw(): void
  resume(): Promise<void>
}

/**
 * Finds or starts a server.
 *
 * @returns The server, or the reason why there is none
 */
export async function findPostgres(): Promise<TestPostgres | string> {
  const given = process.env.DATABASE_URL
  if (given) return { url: given, stop: async () => undefined }
  const inDocker = await startInDocker()
  if (typeof inDocker !== 'string') return inDocker
  const missing = whyNoLocalPostgres()
  return missing === undefined ? await startLocalPostgres() : `${inDocker}; ${missing}`
}

/** Reason why no server can be started here; undefined if one can. */
export function whyNoLocalPostgres(): string | undefined {
  if (binaries() === undefined) return 'no Postgres (apt-get install postgresql)'
  return serverUser() === undefined
    ? 'Postgres refuses to run as root, and there is no user postgres or nobody'
    : undefined
}

/** Starts a server on an empty directory, with fsync on as in production. Disposing stops it and deletes the directory. */
export async function startLocalPostgres(): Promise<LocalPostgres> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-postgres-'))
  const as = serverUser() ?? {}
  if (as.uid !== undefined) await chown(directory, as.uid, as.gid ?? as.uid)
  const data = join(directory, 'data')
  await run(join(binaries() ?? '', 'initdb'), ['-D', data, '-U', 'sluice', '-A', 'trust', '-E', 'UTF8'], {
    ...as,
    cwd: directory,
    timeout: START_MS,
  })
  const port = await freePort()
  const url = `postgres://sluice@127.0.0.1:${port}/postgres`
  let server = await startServer(data, port, url, as)
  const down = async (signal: 'SIGINT' | 'SIGKILL') => {
    if (server.exitCode !== null || server.signalCode !== null) return
    const exited = once(server, 'exit')
    server.kill(signal)
    await exited
  }
  const stop = async () => {
    server.kill('SIGCONT')
    await down('SIGINT')
    await rm(directory, { recursive: true, force: true })
  }
  return {
    url,
    stop,
    down,
    freeze: () => freezeGroup(server, 'SIGSTOP'),
    thaw: () => freezeGroup(server, 'SIGCONT'),
    resume: async () => {
      server = await startServer(data, port, url, as)
    },
    [Symbol.asyncDispose]: stop,
  }
}

/** Sends a signal to the server and to its child processes. Each connection is served by a child process. */
function freezeGroup(server: ChildProcess, signal: 'SIGSTOP' | 'SIGCONT'): void {
  for (const pid of [server.pid ?? 0, ...childrenOf(server.pid ?? 0)]) process.kill(pid, signal)
}

function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number)
}

async function startServer(data: string, port: number, url: string, as: { uid?: number; gid?: number }) {
  const settings = {
    listen_addresses: '127.0.0.1',
    port,
    unix_socket_directories: '',
    fsync: 'on',
    max_connections: 100,
  }
  const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const options = { ...as, cwd: data, stdio: ['ignore', 'ignore', 'pipe'] as const }
  const server = spawn(join(binaries() ?? '', 'postgres'), ['-D', data, ...flags], {
    ...options,
    stdio: [...options.stdio],
  })
  let log = ''
  server.stderr?.on('data', (chunk) => {
    log = (log + chunk).slice(-4_000)
  })
  for (const deadline = Date.now() + START_MS; !(await answers(url)); ) {
    if (server.exitCode !== null || Date.now() > deadline) throw new Error(`Postgres did not start: ${log}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  return server
}

async function answers(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 1_000 })
  client.on('error', () => undefined)
  try {
    await client.connect()
    await client.query('SELECT 1')
    return true
  } catch {
    return false
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** Directory of the programs `initdb` and `postgres`: from PATH, otherwise the newest version of Debian's package. */
function binaries(): string | undefined {
  const versions = existsSync(DEBIAN) ? readdirSync(DEBIAN).toSorted((a, b) => Number(b) - Number(a)) : []
  const places = [...(process.env.PATH ?? '').split(':'), ...versions.map((version) => join(DEBIAN, version, 'bin'))]
  return places.find((place) => existsSync(join(place, 'initdb')) && existsSync(join(place, 'postgres')))
}

/** User that runs a server process, because Postgres and PgBouncer refuse to run as root. An empty object means the current user. */
export function serverUser(): { uid?: number; gid?: number } | undefined {
  if (process.getuid?.() !== 0) return {}
  const lines = readFileSync('/etc/passwd', 'utf8').split('\n')
  const found = ['postgres', 'nobody'].flatMap((name) => lines.filter((line) => line.startsWith(`${name}:`)))[0]
  if (!found) return undefined
  const [, , uid, gid] = found.split(':')
  return { uid: Number(uid), gid: Number(gid) }
}

async function startInDocker(): Promise<TestPostgres | string> {
  if (!process.env.DOCKER_HOST && !existsSync(DOCKER_SOCKET)) return 'no Docker'
  try {
    const { GenericContainer, Wait } = await import('testcontainers')
    const container = await new GenericContainer(IMAGE)
      .withEnvironment({ POSTGRES_USER: 'sluice', POSTGRES_PASSWORD: 'sluice', POSTGRES_DB: 'sluice' })
      .withExposedPorts(5432)
      // The container is ready at the second occurrence of this line. The first comes from the temporary server that initialises the data
      // directory.
      .withWaitStrategy(Wait.forLogMessage(/ready to accept connections/, 2))
      .start()
    const url = `postgres://sluice:sluice@${container.getHost()}:${container.getMappedPort(5432)}/sluice`
    return { url, stop: async () => void (await container.stop()) }
  } catch (error) {
    return `Docker does not run ${IMAGE}: ${error instanceof Error ? error.message : String(error)}`
  }
}
