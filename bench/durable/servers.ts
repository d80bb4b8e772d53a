import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { freePort } from '../../test/support/processes/free-ports.ts'
import { findPostgres } from '../../test/support/processes/postgres.ts'
import { isListening } from '../machine/ports.ts'
import { parentOf } from '../machine/process-tree.ts'

const REDIS = 'redis-server'
const START_MS = 20_000
const STOP_MS = 10_000

/** A Redis of our own that syncs each write before it answers. */
export interface Redis extends AsyncDisposable {
  readonly pid: number | undefined
  readonly port: number
  readonly version: string
}

/** A Postgres, and databases of our own on it. Disposing drops them, and stops the server if we started it. */
export interface Postgres extends AsyncDisposable {
  /** The process that started all others of it; undefined where it runs elsewhere. */
  readonly pid: number | undefined
  readonly version: string
  /** @returns The URL of a new database */
  createDatabase(name: string): Promise<string>
}

/** Starts a Redis with `appendfsync always`. @returns It, or why there is none */
export async function openRedis(dir: string): Promise<Redis | string> {
  const places = (process.env.PATH ?? '').split(':').map((place) => join(place, REDIS))
  const program = places.find((path) => existsSync(path))
  if (!program) return `no ${REDIS} (apt-get install ${REDIS})`
  const { stdout } = await promisify(execFile)(program, ['--version'])
  const port = await freePort()
  const data = join(dir, 'redis')
  mkdirSync(data)
  const flags = { bind: '127.0.0.1', port, dir: data, save: '', appendonly: 'yes', appendfsync: 'always' }
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
  const server = spawn(program, args, { stdio: 'ignore' })
  const kill = () => void server.kill('SIGKILL')
  process.once('exit', kill)
  await untilListening(server, port)
  const version = /v=(\S+)/.exec(stdout)?.[1] ?? 'unknown'
  return {
    pid: server.pid,
    port,
    version,
    async [Symbol.asyncDispose]() {
      process.off('exit', kill)
      if (server.exitCode !== null || server.signalCode !== null) return
      const exited = once(server, 'exit')
      server.kill('SIGTERM')
      const timer = setTimeout(kill, STOP_MS)
      await exited
      clearTimeout(timer)
    },
  }
}

/** Finds or starts a Postgres as the tests do. @returns It, or why there is none */
export async function openPostgres(): Promise<Postgres | string> {
  const server = await findPostgres()
  if (typeof server === 'string') return server
  const admin = new Client({ connectionString: server.url })
  await admin.connect()
  const { rows } = await admin.query(
    "SELECT current_setting('server_version') AS server_version, pg_backend_pid() AS pid",
  )
  const names: string[] = []
  return {
    pid: serverOf(rows[0].pid),
    version: String(rows[0].server_version).split(' ')[0] ?? 'unknown',
    async createDatabase(name) {
      const database = `sluice_bench_${process.pid}_${name}_${names.length}`
      await admin.query(`CREATE DATABASE ${database}`)
      names.push(database)
      const url = new URL(server.url)
      url.pathname = `/${database}`
      return url.href
    },
    async [Symbol.asyncDispose]() {
      for (const name of names) await admin.query(`DROP DATABASE ${name} WITH (FORCE)`)
      await admin.end()
      await server.stop()
    },
  }
}

/** The process that serves all connections, by that of one. @returns undefined where it runs elsewhere, as in a container */
function serverOf(connection: number): number | undefined {
  try {
    const isHere = readFileSync(`/proc/${connection}/comm`, 'utf8').trim() === 'postgres'
    return isHere ? parentOf(connection) : undefined
  } catch {
    return undefined
  }
}

async function untilListening(server: ChildProcess, port: number): Promise<void> {
  for (const deadline = Date.now() + START_MS; !(await isListening(port)); ) {
    if (server.exitCode !== null || Date.now() > deadline) throw new Error('Redis did not start')
    await sleep(50)
  }
}
