import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { ENVIRONMENT } from '../support/processes/environment.ts'
import { freePorts } from '../support/processes/free-ports.ts'
import { whyNoLocalKafka } from '../support/processes/kafka.ts'
import { type LocalPgBouncer, startPgBouncer, whyNoPgBouncer } from '../support/processes/pgbouncer.ts'
import { type LocalPostgres, startLocalPostgres, whyNoLocalPostgres } from '../support/processes/postgres.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../support/stack.ts'
import { type BrokerActor, startBroker } from './broker.ts'
import type { History } from './check/history.ts'
import { type Actor, RoleActor } from './load/actor.ts'
import { RESEARCH_MODEL } from './load/researches.ts'

/** Timeout in ms from the start of the cluster until every process is ready, on a busy machine. */
const READY_MS = 120_000
/** Maximum connections from PgBouncer to the database, shared by all processes. */
const POOL_SIZE = 10
const WRITER_MODEL = 'writer-1'

/** Number of processes of each role. There is one broker and one database. */
export interface Targets {
  readonly ingress: number
  readonly inference: number
  readonly research: number
  readonly scheduler: number
}

/** Number of processes of each role in the chaos runs. */
export const FLEET: Targets = { ingress: 2, inference: 3, research: 2, scheduler: 2 }

/** A complete service in many processes, with its own Kafka and Postgres. Disposing stops all of them and deletes their data. */
export interface Cluster extends AsyncDisposable {
  /** Base URLs of the ingresses, in order. */
  readonly ingresses: readonly string[]
  readonly database: string
  readonly broker: BrokerActor
  /**
   * Returns an actor (a process that a planned fault can kill or freeze) by its name: `ingress-1`, `inference-1`, `scheduler-1`, `broker`,
   * `database` or `pooler`.
   * @throws for an unknown name
   */
  actor(name: string): Actor
  /** Waits until `/readyz` of every process succeeds. */
  ready(): Promise<void>
}

export interface ClusterOptions {
  /** Records the unexpected exits of processes. Process logs are written to the same directory. */
  readonly history: History
  readonly fleet?: Targets
  /** Base URL of the witness: the upstream server of the model `witness-1`, which records each execution. */
  readonly witness?: string
  /** True to connect to the database through a PgBouncer in transaction mode, with fewer connections than the processes open. */
  readonly hasPooler?: boolean
  /** Base URL of the test server for everything that researches call: search, pages and the chat model. */
  readonly outside?: string
  /** Use this Kafka instead of starting one. The caller starts and stops it, so reading {@link Cluster.broker} then throws an error. */
  readonly kafka?: { readonly address: string; readonly settings: Readonly<Record<string, string>> }
}

/** Reason why no cluster can be started here; undefined if one can. */
export async function whyNoCluster(hasPooler = false): Promise<string | undefined> {
  return whyNoLocalPostgres() ?? (hasPooler ? whyNoPgBouncer() : undefined) ?? (await whyNoLocalKafka())
}

/** Starts broker, database and processes, and waits until all are ready. */
export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  await using stack = new AsyncDisposableStack()
  const [own, postgres] = await Promise.all([options.kafka ? undefined : startBroker(), startLocalPostgres()])
  if (own) stack.use(own)
  stack.use(postgres)
  const pooler = options.hasPooler ? stack.use(await startPgBouncer(postgres.url, 'transaction', POOL_SIZE)) : undefined
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-chaos-'))
  stack.defer(() => rm(dataDir, { recursive: true, force: true }))
  const address = options.kafka?.address ?? own?.address ?? ''
  const env = await environmentOf(options, dataDir, address, pooler?.url ?? postgres.url)
  const roles = await rolesOf(options, env)
  stack.defer(async () => void (await Promise.all(roles.map((role) => role.down('SIGKILL')))))
  const actors = new Map<string, Actor>(
    [...roles, ...(own ? [own] : []), databaseActor(postgres), ...(pooler ? [poolerActor(pooler)] : [])].map(
      (actor) => [actor.name, actor] as const,
    ),
  )
  const ready = async () => {
    for (const role of roles) {
      await until(() => role.isReady(), { withinMs: READY_MS }).catch((cause: unknown) => {
        throw new Error(`${role.name} is not ready; see ${options.history.directory}/${role.name}.log`, { cause })
      })
    }
  }
  for (const role of roles) await role.up()
  await ready()
  const owned = stack.move()
  return {
    ingresses: roles.filter(({ name }) => name.startsWith('ingress')).map(({ url }) => url),
    database: postgres.url,
    get broker() {
      if (!own) throw new Error('the brokers of this cluster belong to its caller')
      return own
    },
    actor(name) {
      const found = actors.get(name)
      if (!found) throw new Error(`no actor is called ${name}`)
      return found
    },
    ready,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

async function environmentOf(options: ClusterOptions, dataDir: string, kafka: string, database: string) {
  const modelsFile = join(dataDir, 'models.yaml')
  const models = [ECHO_MODEL, ...witnessModel(options.witness), ...researchModels(options.outside)]
  await writeFile(modelsFile, stringify({ models }))
  return {
    ...ENVIRONMENT,
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    KAFKA_BROKERS: kafka,
    DATABASE_URL: database,
    LOG_LEVEL: 'info',
    // The drain time is short, so that a worker that receives SIGTERM requeues some of its jobs.
    DRAIN_MS: '3000',
    INFERENCE_SLOTS: '48',
    ...options.kafka?.settings,
    ...(options.outside !== undefined && { SEARXNG_URL: options.outside, RESEARCH_ALLOW_PRIVATE: 'true' }),
  }
}

function witnessModel(url: string | undefined): object[] {
  if (url === undefined) return []
  // Failures of this upstream are scripted per job. The circuit breaker must not open because of them.
  const engine = { type: 'openai', base_url: `${url}/v1`, breaker: { failures: 1_000_000 } }
  return [{ ...ECHO_MODEL, id: 'witness-1', engine }]
}

/** Two models for researches: the research model, and the chat model that it uses to write reports. */
function researchModels(url: string | undefined): object[] {
  if (url === undefined) return []
  const engine = { type: 'openai', base_url: `${url}/v1` }
  return [
    { ...ECHO_MODEL, id: WRITER_MODEL, engine },
    { id: RESEARCH_MODEL, pool: 'research', engine: { type: 'research', writer: WRITER_MODEL } },
  ]
}

async function rolesOf(options: ClusterOptions, env: Record<string, string | undefined>): Promise<RoleActor[]> {
  const { history, fleet = FLEET } = options
  await mkdir(history.directory, { recursive: true })
  const names = Object.entries(fleet).flatMap(([role, count]) =>
    Array.from({ length: count }, (_, i) => ({ role, name: `${role}-${i + 1}` })),
  )
  const ports = await freePorts(names.length)
  return names.map(({ role, name }, i) => {
    const port = String(ports[i])
    return new RoleActor({
      name,
      roles: [role],
      env: { ...env, ...(role === 'ingress' ? { PORT: port } : { METRICS_PORT: port }) },
      logFile: join(history.directory, `${name}.log`),
      url: `http://127.0.0.1:${port}`,
      onExit: (target, code) => history.add('faults', { type: 'exit', target, code }),
    })
  })
}

function databaseActor(postgres: LocalPostgres): Actor {
  return {
    name: 'database',
    down: (signal) => postgres.down(signal === 'SIGKILL' ? 'SIGKILL' : 'SIGINT'),
    up: () => postgres.resume(),
    freeze: () => postgres.freeze(),
    thaw: () => postgres.thaw(),
  }
}

function poolerActor(pooler: LocalPgBouncer): Actor {
  return {
    name: 'pooler',
    down: (signal) => pooler.down(signal === 'SIGKILL' ? 'SIGKILL' : 'SIGINT'),
    up: () => pooler.resume(),
    // Freezing is not implemented, because no plan of faults freezes the pooler.
    freeze: () => undefined,
    thaw: () => undefined,
  }
}
