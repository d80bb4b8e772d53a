import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Processes, type Running, urlOf } from '../machine/processes.ts'
import type { Kafka, Postgres, Redis } from '../machine/servers.ts'
import { createKey, KEY, startSluice } from '../machine/sluice.ts'
import { cpuMs, treeCpuMs } from '../machine/usage.ts'

export interface Servers {
  readonly kafka: Kafka
  readonly postgres: Postgres | undefined
  readonly redis: Redis | undefined
}

export interface DurableTarget {
  readonly name: string
  readonly url: URL
  /** CPU time so far, in ms. `own`: the driver and the processes of the system. `servers`: the Redis, Postgres and Kafka that the system uses. */
  cpuMs(): { readonly own: number; readonly servers: number }
}

interface Parts {
  readonly driver: 'bullmq' | 'pg-boss' | 'library' | 'http'
  readonly settings: Record<string, string>
  readonly processes?: readonly Running[]
  readonly serverPids?: readonly (number | undefined)[]
}

type Start = (processes: Processes, servers: Servers, dir: string) => Promise<Parts | undefined>

/**
 * One function per system, in the order in which a round measures the systems. The result is undefined if a server that the system needs is
 * missing.
 */
const SYSTEMS: Readonly<Record<string, Start>> = {
  bullmq: async (_, { redis }) =>
    redis && { driver: 'bullmq', settings: { redisPort: String(redis.port) }, serverPids: [redis.pid] },
  'pg-boss': async (_, { postgres }) =>
    postgres && {
      ...{ driver: 'pg-boss', settings: { databaseUrl: await postgres.createDatabase('pg_boss') } },
      serverPids: [postgres.pid],
    },
  library: async (_, { postgres }, dir) =>
    postgres && {
      ...{ driver: 'library', settings: { dir, databaseUrl: await postgres.createDatabase('library') } },
      serverPids: [postgres.pid],
    },
  'library-sqlite': async (_, __, dir) => ({ driver: 'library', settings: { dir } }),
  'http-bare': async (processes) => {
    const start = { name: 'bare-server', script: './durable/bare-server.ts', addressOn: 'stdout' } as const
    const bare = await processes.node(start)
    const settings = { url: urlOf(bare).href, key: KEY, operatorKey: KEY }
    return { driver: 'http', settings, processes: [bare] }
  },
  http: async (processes, { kafka, postgres }) =>
    postgres && {
      ...(await startHttp(processes, { kafka, databaseUrl: await postgres.createDatabase('http') })),
      serverPids: [postgres.pid, kafka.pid],
    },
  'http-sqlite': async (processes) => await startHttp(processes),
}

async function startHttp(processes: Processes, shared?: { kafka: Kafka; databaseUrl: string }): Promise<Parts> {
  const sluice = await startSluice(processes, {
    name: shared ? 'durable-kafka' : 'durable-embedded',
    models: ['{ id: echo-1, engine: { type: echo } }'],
    kafka: shared?.kafka,
    workers: ['inference', 'scheduler'],
    ...(shared && { env: { DATABASE_URL: shared.databaseUrl } }),
  })
  const operatorKey = await createKey(sluice, '--scopes', 'admin')
  const settings = { url: sluice.url.href, key: KEY, operatorKey }
  return { driver: 'http', settings, processes: sluice.processes }
}

export async function startTargets(processes: Processes, servers: Servers): Promise<DurableTarget[]> {
  const targets: DurableTarget[] = []
  for (const [name, start] of Object.entries(SYSTEMS)) {
    const dir = join(processes.dir, `driver-${name}`)
    mkdirSync(dir)
    const parts = await start(processes, servers, dir)
    if (!parts) continue
    const args = [parts.driver, JSON.stringify(parts.settings)]
    const driver = await processes.node({ name, script: './durable/driver.ts', args, addressOn: 'stdout' })
    const pids = [driver, ...(parts.processes ?? [])].map(({ pid }) => pid)
    const serverPids = (parts.serverPids ?? []).filter((pid) => pid !== undefined)
    targets.push({
      ...{ name, url: urlOf(driver) },
      cpuMs: () => ({
        own: pids.reduce((sum, pid) => sum + cpuMs(pid), 0),
        // Postgres starts one process per connection, so the CPU time of the whole process tree is counted.
        servers: serverPids.reduce((sum, pid) => sum + treeCpuMs(pid), 0),
      }),
    })
  }
  return targets
}
