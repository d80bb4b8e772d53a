import { PoolName } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Blobs } from './blobs/blobs.ts'
import { openDiskBlobs } from './blobs/disk.ts'
import { type StopWatching, watchFleetBlobs } from './blobs/fleet-blobs.ts'
import type { Broker } from './broker/broker.ts'
import type { KafkaOptions } from './broker/kafka/kafka.ts'
import { openMemoryBroker } from './broker/memory.ts'
import { Pauses } from './capacity/capacity.ts'
import type { FleetCounts } from './capacity/fleet-counts.ts'
import { type Config, ConfigError } from './config/config.ts'
import { requireDirectories } from './config/directory.ts'
import type { ContentFilter } from './content-filter/content-filter.ts'
import { UpstreamFleet } from './engines/upstream/limit-partition.ts'
import { sweepBlobs } from './jobs/durable/history.ts'
import { topicsFor } from './jobs/records.ts'
import { openFileKeys } from './keys/file.ts'
import type { KeyStore } from './keys/keys.ts'
import { abortable } from './lib/abortable.ts'
import { newId } from './lib/id.ts'
import { Metrics } from './lib/metrics.ts'
import { LocalServer } from './local-server/local-server.ts'
import type { Log } from './log/log.ts'
import { loadModels, type ModelCatalogue } from './models/models.ts'
import { watchModels } from './models/watch.ts'
import type { EngineOpeners } from './ports/engines.ts'
import { type Extension, loadExtensions } from './ports/extensions.ts'
import { fleetCountsOpener } from './ports/fleet-counts.ts'
import { LOCAL_SERVER_RESOURCE, Preparations, SANDBOX_RESOURCE } from './prepare/preparations.ts'
import { prepareWeights } from './prepare/weights.ts'
import { showDependencies } from './process/health.ts'
import type { Service } from './process/lifecycle.ts'
import { openWhenAvailable } from './process/wait-for-dependency.ts'
import { ChosenSandbox, type LoadAdapter } from './sandbox/choose.ts'
import { requireDockerSocket } from './sandbox/docker/socket.ts'
import type { SearchBackend } from './search/search.ts'
import type { Store, StoreView } from './store/store.ts'

export interface Ports {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly version: string
  readonly broker: Broker
  readonly blobs: Blobs
  readonly unwatchBlobs: StopWatching
  /** The job store. Undefined if this process runs a single role and DATABASE_URL is not set. */
  readonly store: StoreView | undefined
  readonly pauses: Pauses
  openKeys(): Promise<KeyStore>
  /**
   * Opens the counts of rate limits and running calls, which all ingresses share. Undefined if there is only one ingress. The caller must close the
   * counts.
   */
  openFleetCounts(): FleetCounts | undefined
  readonly models: ModelCatalogue
  unwatchModels(): void
  /** Sends the buffered spans to the collector, and ends the export. */
  closeTraces(): Promise<void>
  readonly extensions: readonly Extension[]
  readonly contentFilter: ContentFilter | undefined
  /** Limits of concurrent calls to upstream servers. Workers of all processes share these limits. */
  readonly upstreams: UpstreamFleet
  loadEngines(): Promise<EngineOpeners>
  /** Opens at least one search backend for research. The caller must close the backends. */
  openSearch(): Promise<SearchBackend[]>
  readonly localServer: LocalServer
  readonly sandbox: ChosenSandbox
  readonly preparations: Preparations
  /**
   * Downloads the missing models of a pool, or prepares its sandbox. Preparations of several pools run one after another. A second call for a pool
   * has no effect.
   */
  prepareModels(pool: PoolName, onProgress: PrepareProgress, signal: AbortSignal): Promise<void>
  readonly onFatal: (error: unknown) => void
}

/**
 * Opens the adapters that the settings select. No other code imports all adapters. If a server is unreachable, then the connection is retried for two
 * minutes, so that processes start in spite of a short outage.
 *
 * @param isWhole True if all roles run in this process. A store for a single process is sufficient in this case
 * @param role Role of this process, for its names in Kafka and in traces. Undefined if all roles run in this process
 * @param sandboxes Sandboxes to try, in this order. Default: those of the settings
 * @throws ConfigError, or an error with all problems of the broker
 */
export async function openPorts(
  config: Config,
  log: Log,
  version: string,
  isWhole: boolean,
  onFatal: (error: unknown) => void,
  sandboxes: readonly LoadAdapter[] = sandboxAdapters(config, log),
  role: string | undefined = undefined,
): Promise<Ports> {
  requireDirectories(config, isWhole)
  const models = loadModels(config.modelsFile, config.models)
  const extensions = await loadExtensions(config.extensions)
  const metrics = new Metrics()
  const blobs = await openBlobs(config, log)
  // The store is opened before all parts that start timers or connections. If another process uses the data directory, then the store refuses
  // to open, and no such part must be stopped.
  const store = await openStore(config, log, isWhole)
  const isFleet = store !== undefined && config.kafka !== undefined
  const unwatchBlobs = isFleet
    ? await watchFleetBlobs(blobs, config.blobUrl ?? config.blobDir, store, log)
    : () => undefined
  const pauses = await Pauses.open(store?.operator, log)
  const clientId = newId(`sluice-${role ?? 'all'}-`, 12)
  const broker = await openBroker(config, log, onFatal, clientId)
  if (config.kafka) log.info({ broker: broker.name, client_id: clientId }, 'connected to Kafka')
  log.info({ broker: broker.name, store: store?.name ?? 'none' }, 'broker and store ready')
  // With a store, the scheduler deletes old blobs. Without a store, no scheduler runs, so each process deletes old
  // blobs at its start.
  const swept = store ? 0 : await sweepBlobs(blobs, undefined, config.requestTimeoutMs)
  if (swept > 0) log.info({ count: swept }, 'old blobs deleted at start')
  const contentFilter = config.contentFilter === 'profanity' ? await loadProfanityFilter() : undefined
  const upstreams = new UpstreamFleet(metrics.promptTokens)
  upstreams.showIn(metrics)
  const onKeyProblem = (problem: string) =>
    log.warn({ problem }, 'stored API key or project is invalid and was ignored')
  const openKeys = () => openWhenAvailable('the key store', () => openKeyStore(config, onKeyProblem), log)
  const openFleetCounts = await fleetCountsOpener(config)
  const { weightsDir, audioSecondsMax } = config
  const preparations = new Preparations()
  const localServer = new LocalServer({ directory: weightsDir, audioSecondsMax, log, preparations })
  const connect = (signal: AbortSignal, model?: string) => localServer.connect(signal, model)
  // If all roles share this process, then most calls are for models, so the sandbox starts its interpreters only at the first code run.
  const sandbox = new ChosenSandbox({ adapters: sandboxes, isEager: !isWhole, log, preparations })
  const prepareModels = openPreparation(models, weightsDir, localServer, sandbox, preparations.stopping)
  const engineOptions = { config, upstreams, connect, preparations }
  const loadEngines = async () => (await import('./ports/engines.ts')).engineOpeners(engineOptions)
  const openSearch = async () => (await import('./ports/search.ts')).openSearchBackends(config, log)
  const hasTerminal = process.stderr.isTTY === true
  const unwatchModels = watchModels(models, { path: config.modelsFile, log, metrics, hasTerminal })
  const closeTraces = await openTraces(config, log, metrics, version, role)
  const opened = {
    ...{ closeTraces },
    ...{ broker, blobs, unwatchBlobs, store, pauses, openKeys, openFleetCounts, models, unwatchModels, extensions },
    ...{ contentFilter, upstreams, loadEngines, openSearch, localServer, sandbox, preparations, prepareModels },
  }
  showDependencies({ config, metrics, broker, store, blobs })
  return { config, log, metrics, version, ...opened, onFatal }
}

export function portsService({
  broker,
  store,
  pauses,
  localServer,
  sandbox,
  preparations,
  unwatchBlobs,
  unwatchModels,
  closeTraces,
}: Ports): Service {
  return {
    name: 'ports',
    stopping: () => preparations.stop(),
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
      await closeTraces()
    },
  }
}

export type PrepareProgress = (model: string, fraction: number, message: string) => void

/** Runs preparations one after another. Concurrent preparations would compete for the network and for the progress line of the terminal. */
function openPreparation(
  models: ModelCatalogue,
  directory: string,
  localServer: LocalServer,
  sandbox: ChosenSandbox,
  stopping: AbortSignal,
): Ports['prepareModels'] {
  let last: Promise<void> = Promise.resolve()
  return (pool, onProgress, until) => {
    const signal = AbortSignal.any([until, stopping])
    const own = models.served.models.filter((model) => model.pool === pool)
    const report = (fraction: number, message: string) => onProgress(SANDBOX_RESOURCE, fraction, message)
    const prepare = () =>
      pool === 'code' ? sandbox.prepare(report, signal) : prepareAll(own, directory, localServer, onProgress, signal)
    // If the signal aborts, then this preparation stops waiting for earlier ones. Otherwise a service that closes would wait until the preparations
    // of other services have ended.
    const next = abortable(last, signal).then(prepare)
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
  // Speech models of a remote server need the local model server too: it decodes their audio and separates the speakers.
  if (!models.some(({ engine, pool }) => engine.type === 'local' || pool === 'transcription')) return
  await localServer.prepare((fraction, message) => onProgress(LOCAL_SERVER_RESOURCE, fraction, message), signal)
}

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

/**
 * Opens only the key store, for the command line. The caller must close it.
 *
 * @param onProblem See {@link openFileKeys}
 */
export async function openKeyStore(
  { databaseUrl, dataDir }: Config,
  onProblem?: (problem: string) => void,
): Promise<KeyStore> {
  if (databaseUrl === undefined) return openFileKeys(dataDir, onProblem)
  const { openPostgresKeys } = await import('./keys/postgres.ts')
  return await openPostgresKeys(databaseUrl, onProblem)
}

/**
 * Starts to export traces if a collector is configured. OpenTelemetry requires one `service.name` per group of instances that are scaled together.
 * Roles are scaled separately, so each role is a service of its own in the namespace `sluice`.
 *
 * @returns Function that ends the export
 */
async function openTraces(
  config: Config,
  log: Log,
  metrics: Metrics,
  version: string,
  role: string | undefined,
): Promise<() => Promise<void>> {
  for (const problem of config.tracesProblems)
    log.warn({ problem }, 'invalid OpenTelemetry variable ignored; its default applies')
  if (!config.traces) return async () => {}
  const { openTracing } = await import('./telemetry/otlp.ts')
  const service = {
    'service.namespace': 'sluice',
    'service.name': role === undefined ? 'sluice' : `sluice-${role}`,
    'service.version': version,
  }
  const resource = { ...service, ...config.traces.resource }
  const exporter = openTracing({ ...config.traces, resource, version, log })
  metrics.gauge('sluice_trace_spans_dropped_total', {}, () => exporter.dropped)
  return () => exporter.close()
}

async function openStore(config: Config, log: Log, isWhole: boolean): Promise<Store | undefined> {
  const { databaseUrl: url, databaseConnections: connectionsMax, dataDir } = config
  if (url !== undefined) {
    const { openPostgresStore } = await import('./store/postgres/postgres.ts')
    let isOpen = false
    const onProblem = (message: string, fields: Record<string, unknown>) => {
      // Until the connection is open, problems are thrown to the caller instead of being logged.
      if (isOpen) log.warn(fields, message)
    }
    const onProgress = (message: string, fields: Record<string, unknown>) => log.info(fields, message)
    const open = () => openPostgresStore({ url, connectionsMax, onProblem, onProgress })
    const store = await openWhenAvailable('Postgres', open, log).catch((error: unknown) => {
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

async function openBlobs(config: Config, log: Log): Promise<Blobs> {
  const { blobs: location, blobUrl } = config
  if (location === undefined) return await openDiskBlobs(config.blobDir)
  // The S3 client takes 0.3 s and 34 MB to load, so it is loaded only if needed.
  const { openS3Blobs } = await import('./blobs/s3.ts')
  return await openWhenAvailable('S3', () => openS3Blobs(location), log).catch((error: unknown) => {
    throw new ConfigError([`BLOB_URL (${blobUrl}): ${error instanceof Error ? error.message : error}`])
  })
}

async function openBroker(
  config: Config,
  log: Log,
  onFatal: (error: unknown) => void,
  clientId: string,
): Promise<Broker> {
  const topics = topicsFor(PoolName.options, config.requestTimeoutMs, config.jobDeadlineMaxMs)
  if (!config.kafka) return await openMemoryBroker({ topics })
  // The Kafka client would double the memory of a process without Kafka, so it is loaded only if needed.
  const { openKafkaBroker } = await import('./broker/kafka/kafka.ts')
  const { connectionOf } = await import('./broker/kafka/credentials.ts')
  const { brokers, client, prefix, queuePartitions, replicationFactor } = config.kafka
  const options: KafkaOptions = {
    brokers,
    client,
    prefix,
    topics,
    clientId,
    queuePartitions,
    ...(replicationFactor !== undefined && { replicationFactor }),
    ...connectionOf(config.kafka),
    onProblem: (message, fields) => log[fields?.is_transient ? 'info' : 'warn'](fields ?? {}, message),
    onFatal,
  }
  return await openWhenAvailable('Kafka', () => openKafkaBroker(options), log).catch((error: unknown) => {
    throw new ConfigError([`KAFKA_BROKERS (${brokers.join(', ')}): ${error instanceof Error ? error.message : error}`])
  })
}
