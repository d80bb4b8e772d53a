import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import Docker from 'dockerode'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { probed } from '#shared/sandbox/probe.ts'
import type {
  Sandbox,
  SandboxAdapter,
  SandboxEnd,
  SandboxEvent,
  SandboxJob,
  SandboxStats,
} from '#shared/sandbox/sandbox.ts'
import { SandboxContainer } from './container.ts'
import { prepareImage, pullImage } from './image.ts'
import { removeLeftovers } from './leftovers.ts'
import { WarmPool } from './pool.ts'

/** Maximum containers that wait for a run. Each takes about 150 MiB. */
const IDLE_MAX = 8
const PING_MS_MAX = 5_000

const GUARANTEES = [
  'Each run has its own container, which is removed afterwards: no process or memory is shared with another run.',
  'A run sees a read-only root file system without files of this machine. No network, no capabilities, two system call filters.',
  'A run has an unprivileged user, and limits on time, memory, CPU, threads, files and output. Nothing remains after its end.',
]
const SHARED_KERNEL =
  'Containers share the kernel of this machine. For hostile tenants, set SANDBOX_RUNTIME=runsc (gVisor).'

export interface DockerOptions {
  readonly directory: string
  readonly log: Log
  /** Docker's name of the runtime, such as `runsc`; default: Docker's own default. */
  readonly runtime?: string | undefined
  /** An image built by deploy/sandbox-image.sh or deploy/sandbox.Dockerfile. If undefined, an image is built on this machine. */
  readonly image?: string | undefined
  /** Default: DOCKER_HOST, else /var/run/docker.sock. */
  readonly socketPath?: string | undefined
}

export function dockerAdapter(options: DockerOptions): SandboxAdapter {
  const docker = new Docker(options.socketPath === undefined ? {} : { socketPath: options.socketPath })
  return {
    name: 'docker',
    guarantees: [
      ...GUARANTEES,
      ...(options.runtime === undefined ? [SHARED_KERNEL] : [`Container runtime: ${options.runtime}.`]),
    ],
    async prepare(onProgress, signal) {
      await prepared(docker, options, onProgress, signal)
    },
    async check(signal) {
      await prepared(docker, options, () => {}, signal, true)
    },
    async open(signal) {
      const image = await prepared(docker, options, () => {}, signal)
      return await explained(signal, async () => {
        await removeLeftovers(docker, options.log)
        return await probed(new DockerSandbox(docker, image, options), signal)
      })
    },
  }
}

async function prepared(
  docker: Docker,
  { directory, image, runtime }: DockerOptions,
  onProgress: (fraction: number, message: string) => void,
  signal: AbortSignal,
  checksOnly = false,
): Promise<string> {
  return await explained(signal, async () => {
    if (image === undefined && process.platform !== 'linux') {
      const message =
        'The image can be built on Linux only. Build it there (deploy/sandbox-image.sh) and set SANDBOX_IMAGE.'
      throw new ServiceError('sandbox_unavailable', message)
    }
    await checkDaemon(docker, runtime)
    const imageOptions = { directory, onProgress, signal, checksOnly }
    if (image !== undefined) await pullImage(docker, image, imageOptions)
    const name = image ?? (await prepareImage(docker, imageOptions))
    onProgress(1, 'ready')
    return name
  })
}

async function checkDaemon(docker: Docker, runtime: string | undefined): Promise<void> {
  const late = AbortSignal.timeout(PING_MS_MAX)
  const info = await Promise.race([docker.info(), once(late, 'abort').then(() => Promise.reject(late.reason))])
  const runtimes = Object.keys((info as { Runtimes?: object }).Runtimes ?? {})
  if (runtime === undefined || runtimes.includes(runtime)) return
  const message = `The Docker daemon has no runtime ${runtime} (it has ${runtimes.join(', ')}): add it to daemon.json.`
  throw new ServiceError('sandbox_unavailable', message)
}

async function explained<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (cause) {
    signal.throwIfAborted()
    if (cause instanceof ServiceError) throw cause
    throw new ServiceError('sandbox_unavailable', reasonOf(cause), { cause })
  }
}

function reasonOf(cause: unknown): string {
  const { code, name, message } = cause as NodeJS.ErrnoException
  if (code === 'EACCES') return 'This user cannot access Docker. Add the user to the group docker.'
  if (code === 'ENOENT' || code === 'ECONNREFUSED') return 'No Docker daemon responds. Start one, or set DOCKER_HOST.'
  if (name === 'TimeoutError' || name === 'AbortError') return 'The Docker daemon does not respond.'
  return `The Docker daemon rejected the request: ${message}`
}

class DockerSandbox implements Sandbox {
  readonly name = 'docker'
  libraries: Readonly<Record<string, string>> = {}
  readonly #pool: WarmPool<SandboxContainer>
  readonly #closing = new AbortController()
  readonly #taken = new Set<SandboxContainer>()
  #busy = 0

  constructor(docker: Docker, image: string, { log, runtime }: DockerOptions) {
    const onProblem = (error: unknown) => log.warn({ err: error }, 'sandbox container could not be removed')
    const cores = availableParallelism()
    this.#pool = new WarmPool({
      start: (signal) => SandboxContainer.start(docker, { image, runtime, onProblem }, signal),
      idleMax: Math.min(IDLE_MAX, 2 * cores),
      startsMax: cores,
      onFailure: (error) => log.warn({ err: error }, 'sandbox container could not be started'),
    })
  }

  async run(
    job: SandboxJob,
    onEvent: (event: SandboxEvent) => void,
    signal: AbortSignal,
    onStart?: () => void,
  ): Promise<SandboxEnd> {
    const ending = AbortSignal.any([signal, this.#closing.signal])
    const container = await this.#pool.take(ending)
    this.libraries = container.versions
    this.#taken.add(container)
    this.#busy += 1
    onStart?.()
    try {
      return await container.run(job, onEvent, ending)
    } finally {
      this.#busy -= 1
      void container.dispose().then(() => this.#taken.delete(container))
    }
  }

  stats(): SandboxStats {
    return { idle: this.#pool.idle, busy: this.#busy }
  }

  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('sandbox_lost', 'The sandbox was closed.'))
    await this.#pool.close()
    await Promise.all([...this.#taken].map((container) => container.dispose()))
  }
}
