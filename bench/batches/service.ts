import { mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import type { Postgres } from '../durable/servers.ts'
import type { Kafka } from '../machine/kafka.ts'
import { type Processes, type Running, run } from '../machine/processes.ts'
import { residentMib } from '../machine/usage.ts'

/** Of the project that makes the batch. */
export const KEY = 'sk-bench-0123456789'

const MODELS = 'models: [{ id: echo-1, engine: { type: echo } }]\n'
const CLI = resolve(import.meta.dirname, '../../services/cli/sluice.js')

/** What a fleet needs beside its processes. */
export interface Servers {
  readonly kafka: Kafka
  readonly postgres: Postgres
}

/** A service of one process, or of several that meet in Kafka and Postgres. */
export class Service {
  readonly #processes: Processes
  readonly #env: Record<string, string>
  /** Those that are killed, in turns; the last one of them answers calls. */
  readonly #roles: readonly string[]
  readonly #running = new Map<string, Running>()
  #upSince = 0

  private constructor(processes: Processes, env: Record<string, string>, roles: readonly string[]) {
    this.#processes = processes
    this.#env = env
    this.#roles = roles
  }

  /** @param servers undefined: everything is in one process, over SQLite. */
  static async start(processes: Processes, servers: Servers | undefined): Promise<Service> {
    const { dir } = processes
    const data = join(dir, 'data')
    mkdirSync(data)
    writeFileSync(join(dir, 'models.yaml'), MODELS)
    const env = {
      ...{ PORT: '0', DATA_DIR: data, MODELS_FILE: join(dir, 'models.yaml'), SLUICE_API_KEY: KEY, LOG_LEVEL: 'warn' },
      ...(servers && {
        KAFKA_BROKERS: servers.kafka.brokers,
        KAFKA_PREFIX: `bench-batches-${process.pid}.`,
        DATABASE_URL: await servers.postgres.createDatabase('batches'),
      }),
    }
    const service = new Service(processes, env, servers ? ['inference', 'ingress'] : ['service'])
    for (const role of [...(servers ? ['scheduler'] : []), ...service.#roles]) await service.#start(role)
    return service
  }

  /** Where calls go. */
  get url(): URL {
    return this.#running.get(this.#roles.at(-1) as string)?.url as URL
  }

  /** Milliseconds since a process was started. */
  get upMs(): number {
    return performance.now() - this.#upSince
  }

  /** Makes the key of another project. */
  async key(): Promise<string> {
    const made = JSON.parse(await run(process.execPath, [CLI, 'keys', 'create', '--json'], this.#env))
    return String(made.secret)
  }

  /** Resident memory by process, in MiB. */
  memory(): Record<string, number> {
    return Object.fromEntries(this.#roles.map((role) => [role, residentMib(this.#running.get(role)?.pid ?? 0)]))
  }

  /** Kills a process with SIGKILL, each in its turn, and starts it again. @returns Which one */
  async kill(nth: number): Promise<string> {
    const role = this.#roles[nth % this.#roles.length] as string
    process.kill(this.#running.get(role)?.pid as number, 'SIGKILL')
    await this.#start(role)
    return role
  }

  async #start(role: string): Promise<void> {
    const isWhole = role === 'service'
    const addressOn = isWhole || role === 'ingress' ? 'stderr' : 'none'
    const args = isWhole ? [] : [role]
    const start = { name: role, script: '../services/main.js', args, env: this.#env, addressOn } as const
    this.#running.set(role, await this.#processes.node(start))
    this.#upSince = performance.now()
  }
}
