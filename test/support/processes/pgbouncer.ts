/** Starts a real PgBouncer (Debian package) in front of a Postgres server of the tests. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { chown, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { freePort } from './free-ports.ts'
import { serverUser } from './postgres.ts'

const START_MS = 30_000
const ROOT_PATH = '/usr/sbin'

/** A running PgBouncer. Disposing stops it and deletes its directory. */
export interface LocalPgBouncer extends AsyncDisposable {
  /** URL of the database, with the address of the pooler instead of the server. */
  readonly url: string
  /** Stops the pooler; the port is kept for the restart. SIGINT waits for running transactions, SIGKILL simulates a crash. */
  down(signal: 'SIGINT' | 'SIGKILL'): Promise<void>
  resume(): Promise<void>
}

/** Pool mode of PgBouncer. `default` sets neither a mode nor a pool size, so that PgBouncer's own defaults apply. */
export type PoolMode = 'transaction' | 'session' | 'default'

/** Reason why PgBouncer cannot start here; undefined if it can. */
export function whyNoPgBouncer(): string | undefined {
  if (binary() === undefined) return 'no PgBouncer (apt-get install pgbouncer)'
  return serverUser() === undefined
    ? 'PgBouncer refuses to run as root, and there is no user postgres or nobody'
    : undefined
}

/**
 * Starts a pooler for the databases of a server.
 *
 * @param poolSize Maximum connections to the server per database. The value is low, so that successive transactions of one client use different
 * connections.
 */
export async function startPgBouncer(server: string, mode: PoolMode, poolSize = 4): Promise<LocalPgBouncer> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-pgbouncer-'))
  const as = serverUser() ?? {}
  const { hostname, port: serverPort, username, password, pathname } = new URL(server)
  const port = await freePort()
  const own = mode === 'default' ? '' : `pool_mode = ${mode}\ndefault_pool_size = ${poolSize}\nserver_login_retry = 1\n`
  const ini = join(directory, 'pgbouncer.ini')
  await writeFile(join(directory, 'users'), `"${username}" "${decodeURIComponent(password)}"\n`)
  await writeFile(
    ini,
    `[databases]\n* = host=${hostname} port=${serverPort || 5432}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = ${port}\n` +
      `unix_socket_dir =\nauth_type = trust\nauth_file = ${join(directory, 'users')}\nmax_client_conn = 500\n${own}`,
  )
  if (as.uid !== undefined) {
    for (const path of [directory, ini, join(directory, 'users')]) await chown(path, as.uid, as.gid ?? as.uid)
  }
  const url = `postgres://${username}@127.0.0.1:${port}${pathname}`
  const start = async () => await startProcess(ini, url, as)
  let bouncer = await start()
  const down = async (signal: 'SIGINT' | 'SIGKILL') => {
    if (bouncer.exitCode !== null || bouncer.signalCode !== null) return
    const exited = once(bouncer, 'exit')
    bouncer.kill(signal)
    await exited
  }
  return {
    url,
    down,
    async resume() {
      bouncer = await start()
    },
    async [Symbol.asyncDispose]() {
      await down('SIGKILL')
      await rm(directory, { recursive: true, force: true })
    },
  }
}

async function startProcess(ini: string, url: string, as: { uid?: number; gid?: number }): Promise<ChildProcess> {
  const bouncer = spawn(binary() ?? '', [ini], { ...as, stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  bouncer.stderr?.on('data', (chunk) => {
    log = (log + chunk).slice(-4_000)
  })
  for (const deadline = Date.now() + START_MS; !(await answers(url)); ) {
    if (bouncer.exitCode !== null || Date.now() > deadline) throw new Error(`PgBouncer did not start: ${log}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  return bouncer
}

/** Whether the pooler accepts connections; the server behind it may be down. */
async function answers(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 1_000 })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return true
  } catch (error) {
    return !/ECONNREFUSED/.test(String(error))
  } finally {
    await client.end().catch(() => undefined)
  }
}

function binary(): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(':'), ROOT_PATH]
  return folders.map((folder) => join(folder, 'pgbouncer')).find((path) => existsSync(path))
}
