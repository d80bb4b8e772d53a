import { PoolName } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Blobs } from './blobs/blobs.ts'
import { openDiskBlobs } from './blobs/disk.ts'
import { type StopWatching, watchFleetDirectory } from './blobs/fleet-directory.ts'
import type { Broker } from './broker/broker.ts'
import type { KafkaOptions } from './broker/kafka/kafka.ts'
import { openMemoryBroker } from './broker/memory.ts'
import { type Config, ConfigError } from './config/config.ts'
import type { ContentFilter } from './content-filter/content-filter.ts'
import { requireDirectories } from './directory.ts'
import { UpstreamFleet } from './engines/upstream/share.ts'
import { newId } from './id.ts'
import { sweepBlobs } from './jobs/durable/blobs.ts'
import { Pauses } from './jobs/pauses.ts'
import { topicsFor } from './jobs/topics.ts'
import { openFileKeys } from './keys/file.ts'
import type { KeyStore } from './keys/keys.ts'
import type { FleetCounts } from './limits/fleet-counts.ts'
import { LocalServer } from './local-server/local-server.ts'
import type { Log } from './log/log.ts'
import { Metrics } from './metrics.ts'
import { loadModels, type ModelCatalogue } from './models/models.ts'
import { watchModels } from './models/watch.ts'
import type { EngineOpeners } from './ports/engines.ts'
import { fleetCountsOpener } from './ports/fleet-counts.ts'
import { prepareWeights } from './prepare/weights.ts'
import type { Service } from './process/lifecycle.ts'
import { openWhenThere } from './process/when-there.ts'
import { ChosenSandbox, type LoadAdapter } from './sandbox/choose.ts'
import { requireDockerSocket } from './sandbox/docker/socket.ts'
import type { SearchBackend } from './search/search.ts'
import type { Store, StoreView } from './store/store.ts'

/** Everything a service works with, adapters chosen. */
export interface Ports {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly version: string
  readonly broker: Broker
  readonly blobs: Blobs
  /** Compares BLOB_DIR with that of other processes no more. */
  readonly unwatchBlobs: StopWatching
  /** Arbiter of durable jobs; undefined in a role of its own without DATABASE_URL. */
  readonly store: StoreView | undefined
  /** Work that is not started for now. */
  readonly pauses: Pauses
  /** Opens the key store. The caller closes it. */
  openKeys(): Promise<KeyStore>
  /** Opens what all ingresses count together; undefined where there is nobody to count with. The caller closes it. */
  openFleetCounts(): FleetCounts | undefined
  readonly models: ModelCatalogue
  /** Reads the models file no more when it changes. */
  unwatchModels(): void
  /** Looks at answers; undefined when it is switched off. */
  readonly contentFilter: ContentFilter | undefined
  /** What the servers behind HTTP bear, as the workers of this process share it with those of others. */
  readonly upstreams: UpstreamFleet
  /** Loads what opens the engines of models, which takes memory in every process that runs some. */
  loadEngines(): Promise<EngineOpeners>
  /** Opens the places where research looks for sources, at least one. The caller closes them. */
  openSearch(): Promise<SearchBackend[]>
  /** The local model server of this process, which starts with its first call. */
  readonly localServer: LocalServer
  /** Where this process runs code. */
  readonly sandbox: ChosenSandbox
  /**
   * Prepares what a pool needs and this machine lacks: the models, the sandbox. Gives the progress of each. One pool after
   * another; tolerates being asked twice.
   */
  prepareModels(pool: PoolName, onProgress: PrepareProgress, signal: AbortSignal): Promise<void>
  /** A part broke for good: the process must end. */
  readonly onFatal: (error: unknown) => void
}

/**
 * Opens the adapters that the settings ask for: the only place that knows which there are. Waits for what is away, up to
 * two minutes, so that an outage does not end the processes that start in it.
 *
 * @param isWhole Every role runs in this process, so a store that is open in one process will do.
 * @param role Names this process to Kafka, with a boot id.
 * @param sandboxes In the order in which they are tried; default: as the settings say.
 * @throws ConfigError, or the broker's list of everything that is wrong with it
 */
export async function openPorts(
  config: Config,
  log: Log,
  version: string,
  isWhole: boolean,
  onFatal: (error: unknown) => void,
  sandboxes: readonly LoadAdapter[] = sandboxAdapters(config, log),
  role = 'all',
): Promise<Ports> {
  requireDirectories(config, isWhole)
  const models = loadModels(config.modelsFile, config.models)
  const metrics = new Metrics()
  const blobs = await openDiskBlobs(config.blobDir)
  // First of all: it refuses a second process on the same data directory.
  const store = await openStore(config, log, isWhole)
  const isFleet = store !== undefined && config.kafka !== undefined
  const unwatchBlobs = isFleet ? await watchFleetDirectory(config.blobDir, store, log) : () => undefined
  const pauses = await Pauses.open(store?.operator, log)
  const clientId = newId(`sluice-${role}-`, 12)
  const broker = await openBroker(config, log, onFatal, clientId)
  if (config.kafka) log.info({ broker: broker.name, client_id: clientId }, 'broker open')
  log.info({ broker: broker.name, store: store?.name ?? 'none' }, 'ports ready')
  // Where there is a store, a scheduler sweeps them.
  const swept = store ? 0 : await sweepBlobs(blobs, undefined, config.requestTimeoutMs)
  if (swept > 0) log.info({ count: swept }, 'old blobs deleted')
  const contentFilter = config.contentFilter === 'profanity' ? await loadProfanityFilter() : undefined
  const upstreams = new UpstreamFleet()
  const onKeyProblem = (problem: string) => log.warn({ problem }, 'API key not understood')
  const openKeys = () => openWhenThere('the key store', () => openKeyStore(config, onKeyProblem), log)
  const openFleetCounts = await fleetCountsOpener(config)
  const { weightsDir, audioSecondsMax } = config
  const localServer = new LocalServer({ directory: weightsDir, audioSecondsMax, log })
  const connect = (signal: AbortSignal, model?: string) => localServer.connect(signal, model)
  // Where all roles share a process most of its calls are for models: the interpreters start with the first run.
  const sandbox = new ChosenSandbox({ adapters: sandboxes, isEager: !isWhole, log })
  const prepareModels = openPreparation(models, weightsDir, localServer, sandbox)
  const loadEngines = async () => (await import('./ports/engines.ts')).engineOpeners({ config, upstreams, connect })
  const openSearch = async () => (await import('./ports/search.ts')).openSearchBackends(config, log)
  const hasTerminal = process.stderr.isTTY === true
  const unwatchModels = watchModels(models, { path: config.modelsFile, log, metrics, hasTerminal })
  const opened = {
    ...{ broker, blobs, unwatchBlobs, store, pauses, openKeys, openFleetCounts, models, unwatchModels },
    ...{ contentFilter, upstreams, loadEngines, openSearch, localServer, sandbox, prepareModels },
  }
  return { config, log, metrics, version, ...opened, onFatal }
}

/** The ports as what closes last of all services. */
export function portsService({
  broker,
  store,
  pauses,
  localServer,
  sandbox,
  unwatchBlobs,
  unwatchModels,
}: Ports): Service {
  return {
    name: 'ports',
    drain: async () => {},
    problems: () => [],
    async close() {
      unwatchModels()
      unwatchBlobs()
      pauses.close()
      await broker.close()
      await store?.close()
      await localServer.close()
      await sandbox.close()
    },
  }
}

/** Hears how far one model is: a fraction from 0 to 1, and what is being done. */
export type PrepareProgress = (model: string, fraction: number, message: string) => void

/** Preparations that take turns: each has the network, and the terminal's line, to itself. */
function openPreparation(
  models: ModelCatalogue,
  directory: string,
  localServer: LocalServer,
  sandbox: ChosenSandbox,
): Ports['prepareModels'] {
  let last: Promise<void> = Promise.resolve()
  return (pool, onProgress, signal) => {
    const own = models.served.models.filter((model) => model.pool === pool)
    const tell = (fraction: number, message: string) => onProgress('the sandbox for code', fraction, message)
    const prepare = () =>
      pool === 'code' ? sandbox.prepare(tell, signal) : prepareAll(own, directory, localServer, onProgress, signal)
    const next = last.then(prepare)
    // Whoever asked hears what went wrong; the next one has its turn all the same.
    last = next.catch(() => {})
    return next
  }
}

async function prepareAll(
  models: readonly ModelConfig[],
  directory: string,
  localServer: LocalServer,
  onProgress: PrepareProgress,
  signal: AbortSignal,
): Promise<void> {
  for (const { id, engine } of models) {
    if (engine.type !== 'llama' || engine.file !== undefined || engine.weights === undefined) continue
    const report = (fraction: number, message: string) => onProgress(id, fraction, message)
    await prepareWeights(engine.weights, directory, { onProgress: report, signal })
  }
  // It also decodes what goes to speech models elsewhere, and tells speakers apart for them.
  if (!models.some(({ engine, pool }) => engine.type === 'local' || pool === 'transcription')) return
  await localServer.prepare((fraction, message) => onProgress('speech and embeddings', fraction, message), signal)
}

/** The sandboxes that the settings allow, in the order in which they are tried. */
export function sandboxAdapters(config: Config, log: Log): LoadAdapter[] {
  const { sandbox, sandboxDir: directory, sandboxRuntime: runtime, sandboxImage: image, env } = config
  const all: LoadAdapter[] = [
    {
      name: 'docker',
      load: async () => {
        await requireDockerSocket(env.DOCKER_HOST)
        const { dockerAdapter } = await import('./sandbox/docker/docker.ts')
        return dockerAdapter({ directory, runtime, image, log })
      },
    },
    {
      name: 'zygote',
      load: async () => (await import('./sandbox/zygote/zygote.ts')).zygoteAdapter({ directory, log }),
    },
    { name: 'wasm', load: async () => (await import('./sandbox/wasm/wasm.ts')).wasmAdapter({ directory, log }) },
  ]
  return all.filter(({ name }) => sandbox === 'auto' || sandbox === name)
}

async function loadProfanityFilter(): Promise<ContentFilter> {
  const { openProfanityFilter } = await import('./content-filter/profanity.ts')
  return openProfanityFilter()
}

/** Opens where API keys are kept: all that the command line needs. The caller closes it. @param onProblem See {@link openFileKeys} */
export async function openKeyStore(
  { databaseUrl, dataDir }: Config,
  onProblem?: (problem: string) => void,
): Promise<KeyStore> {
  if (databaseUrl === undefined) return openFileKeys(dataDir, onProblem)
  const { openPostgresKeys } = await import('./keys/postgres.ts')
  return await openPostgresKeys(databaseUrl, onProblem)
}

async function openStore(config: Config, log: Log, isWhole: boolean): Promise<Store | undefined> {
  const { databaseUrl: url, databaseConnections: connectionsMax, dataDir } = config
  if (url !== undefined) {
    const { openPostgresStore } = await import('./store/postgres/postgres.ts')
    let isOpen = false
    const onProblem = (message: string, fields: Record<string, unknown>) => {
      // Before, each try would tell the same as its error.
      if (isOpen) log.warn(fields, message)
    }
    const onProgress = (message: string, fields: Record<string, unknown>) => log.info(fields, message)
    const open = () => openPostgresStore({ url, connectionsMax, onProblem, onProgress })
    const store = await openWhenThere('Postgres', open, log).catch((error: unknown) => {
      const reason = error instanceof Error ? error.message : String(error)
      const why = reason === 'Invalid URL' ? 'expected postgres://user:password@host:port/database' : reason
      throw new ConfigError([`DATABASE_URL: ${why}`])
    })
    isOpen = true
    return store
  }
  if (!isWhole) return undefined
  const { openSqliteStore } = await import('./store/sqlite/sqlite.ts')
  try {
    const onProblem = (message: string, fields: Record<string, unknown>) => log.warn(fields, message)
    return openSqliteStore({ directory: dataDir, boot: newId('sluice_', 8), onProblem })
  } catch (error) {
    throw new ConfigError([`DATA_DIR: ${error instanceof Error ? error.message : error}`])
  }
}

async function openBroker(
  config: Config,
  log: Log,
  onFatal: (error: unknown) => void,
  clientId: string,
): Promise<Broker> {
  const topics = topicsFor(PoolName.options, config.requestTimeoutMs, config.jobDeadlineMaxMs)
  if (!config.kafka) return await openMemoryBroker({ topics })
  // The clients are only loaded where they are used: they would double the footprint of a process without Kafka.
  const { openKafkaBroker } = await import('./broker/kafka/kafka.ts')
  const { brokers, client, prefix, queuePartitions, replicationFactor, tls, sasl } = config.kafka
  const options: KafkaOptions = {
    brokers,
    client,
    prefix,
    topics,
    clientId,
    queuePartitions,
    ...(replicationFactor !== undefined && { replicationFactor }),
    tls,
    ...(sasl && { sasl }),
    onProblem: (message, fields) => log[fields?.is_transient ? 'info' : 'warn'](fields ?? {}, message),
    onFatal,
  }
  return await openWhenThere('Kafka', () => openKafkaBroker(options), log).catch((error: unknown) => {
    throw new ConfigError([`KAFKA_BROKERS (${brokers.join(', ')}): ${error instanceof Error ? error.message : error}`])
  })
}
