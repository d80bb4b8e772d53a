import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client } from 'pg'
import { freePort } from '../../test/support/processes/free-ports.ts'
import { findPostgres } from '../../test/support/processes/postgres.ts'
import { runCommand } from './processes.ts'
import { parentOf } from './usage.ts'

/*
 * Starts or finds the Kafka, Redis and Postgres servers of a benchmark run. If the run has started a server, then disposing stops it. If a server
 * runs elsewhere, then its `pid` is undefined and its CPU time is not counted.
 */

const REDIS = 'redis-server'
const START_TIMEOUT_MS = 20_000
const STOP_TIMEOUT_MS = 10_000

export interface Server extends AsyncDisposable {
  readonly pid: number | undefined
  readonly version: string
}

export interface Kafka extends Server {
  readonly brokers: string
}

/** A Redis that writes each change to disk before it answers. */
export interface Redis extends Server {
  readonly port: number
}

export interface Postgres extends Server {
  createDatabase(name: string): Promise<string>
}

/**
 * Options of the JVM for a measurement of latency that lasts only minutes. The JVM then compiles with its fast compiler (C1) only. The optimizing
 * compiler (C2) would work during the first minutes and take up to a whole core. A broker in production has finished this work long ago.
 */
export const SHORT_LIVED_JVM = '-XX:TieredStopAtLevel=1'

/**
 * Starts a local Kafka by deploy/kafka-local.sh, or uses KAFKA_BROKERS.
 *
 * @param java Additional options of the JVM
 * @throws Error if Java or Maven is missing
 */
export async function openKafka(dir: string, java = ''): Promise<Kafka> {
  const given = process.env.KAFKA_BROKERS
  if (given)
    return { brokers: given, pid: undefined, version: 'Kafka (KAFKA_BROKERS)', async [Symbol.asyncDispose]() {} }
  const script = fileURLToPath(new URL('../../deploy/kafka-local.sh', import.meta.url))
  const env = { KAFKA_RUN_DIR: join(dir, 'kafka'), ...(java && { KAFKA_JAVA: java }) }
  let pid: number | undefined
  const kill = () => void (pid && process.kill(pid, 'SIGKILL'))
  process.once('exit', kill)
  const stop = async () => {
    process.off('exit', kill)
    await runCommand('bash', [script, 'clean'], env)
  }
  try {
    const brokers = await runCommand('bash', [script, 'start'], env)
    pid = Number(readFileSync(join(env.KAFKA_RUN_DIR, '1', 'pid'), 'utf8'))
    const log = readFileSync(join(env.KAFKA_RUN_DIR, '1', 'log'), 'utf8')
    const version = /Kafka version: (\S+)/.exec(log)?.[1] ?? 'unknown'
    return { brokers, pid, version: `Kafka ${version}`, [Symbol.asyncDispose]: stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** @returns A Redis, or the reason why there is none */
export async function openRedis(dir: string): Promise<Redis | string> {
  const printed = await runCommand(REDIS, ['--version']).catch(() => undefined)
  if (printed === undefined) return `no ${REDIS} (apt-get install ${REDIS})`
  const port = await freePort()
  const data = join(dir, 'redis')
  mkdirSync(data)
  const flags = { bind: '127.0.0.1', port, dir: data, save: '', appendonly: 'yes', appendfsync: 'always' }
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
  const server = spawn(REDIS, args, { stdio: 'ignore' })
  const kill = () => void server.kill('SIGKILL')
  process.once('exit', kill)
  for (const deadline = Date.now() + START_TIMEOUT_MS; !(await isListening(port)); await sleep(50)) {
    if (server.exitCode !== null || Date.now() > deadline) throw new Error('Redis did not start')
  }
  return {
    pid: server.pid,
    port,
    version: `Redis ${/v=(\S+)/.exec(printed)?.[1] ?? 'unknown'}`,
    async [Symbol.asyncDispose]() {
      process.off('exit', kill)
      if (server.exitCode !== null || server.signalCode !== null) return
      const exited = once(server, 'exit')
      server.kill('SIGTERM')
      const timer = setTimeout(kill, STOP_TIMEOUT_MS)
      await exited
      clearTimeout(timer)
    },
  }
}

/** Finds or starts a Postgres in the same way as the tests. @returns The server, or the reason why there is none */
export async function openPostgres(): Promise<Postgres | string> {
  const server = await findPostgres()
  if (typeof server === 'string') return server
  const admin = new Client({ connectionString: server.url })
  await admin.connect()
  const { rows } = await admin.query("SELECT current_setting('server_version') AS version, pg_backend_pid() AS pid")
  const names: string[] = []
  return {
    pid: postmasterOf(rows[0].pid),
    version: `PostgreSQL ${String(rows[0].version).split(' ')[0]}`,
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

/** Returns the main process of Postgres, the parent of each connection's process. Undefined if Postgres is not a local process. */
function postmasterOf(backend: number): number | undefined {
  try {
    const isHere = readFileSync(`/proc/${backend}/comm`, 'utf8').trim() === 'postgres'
    return isHere ? parentOf(backend) : undefined
  } catch {
    return undefined
  }
}

async function isListening(port: number): Promise<boolean> {
  const socket = connect({ host: '127.0.0.1', port })
  const isOpen = await once(socket, 'connect').then(
    () => true,
    () => false,
  )
  socket.destroy()
  return isOpen
}
