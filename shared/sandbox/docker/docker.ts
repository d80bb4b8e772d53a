import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import Docker from 'dockerode'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { PrepareOptions } from '#shared/prepare/prepare.ts'
import { INSIDE_DIRECTORY, prepareRoot } from '#shared/sandbox/root/root.ts'
import {
  probed,
  type Sandbox,
  type SandboxAdapter,
  type SandboxEnd,
  type SandboxEvent,
  type SandboxJob,
  type SandboxStats,
} from '#shared/sandbox/sandbox.ts'
import { LABEL, SandboxContainer } from './container.ts'
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
  /** Name of the container runtime in the configuration of Docker, such as `runsc`. Default: the default runtime of Docker. */
  readonly runtime?: string | undefined
  /** An image built by deploy/sandbox-image.sh or deploy/sandbox.Dockerfile. If undefined, then an image is built on this machine. */
  readonly image?: string | undefined
  /** Path of Docker's socket. Default: DOCKER_HOST, or else /var/run/docker.sock. */
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
    const onProblem = (error: unknown) =>
      log.warn({ err: error }, 'sandbox container could not be removed; the next start of this service removes it')
    const cores = availableParallelism()
    this.#pool = new WarmPool({
      start: (signal) => SandboxContainer.start(docker, { image, runtime, onProblem }, signal),
      idleMax: Math.min(IDLE_MAX, 2 * cores),
      startsMax: cores,
      onFailure: (error) => log.warn({ err: error }, 'sandbox container could not be started; waiting runs fail'),
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

const ROOT_SHARE = 0.8
const REPOSITORY = 'sluice-sandbox'
/** Timeout in ms of an import, which copies 400 MB, and of a pull, which downloads 400 MB. */
const IMPORT_MS_MAX = 10 * 60_000

interface ImageOptions {
  readonly onProgress: (fraction: number, message: string) => void
  readonly signal: AbortSignal
  readonly directory: string
  /** If true, then nothing is built or downloaded, and a missing image is an error. */
  readonly checksOnly?: boolean
}

/**
 * Ensures that the daemon has the image of this version. The image is built from the root file system of the zygote (an interpreter that forks a
 * child per run), so no registry is needed.
 *
 * @returns The image name, which changes with the contents
 * @throws ServiceError `sandbox_unavailable`, an error of the daemon, or the abort reason
 */
async function prepareImage(docker: Docker, options: ImageOptions): Promise<string> {
  const { directory, onProgress, signal, checksOnly } = options
  const rootOptions: PrepareOptions = {
    signal,
    checksOnly: checksOnly,
    onProgress: (fraction, what) => onProgress(ROOT_SHARE * fraction, what),
  }
  const root = await prepareRoot(directory, rootOptions)
  const tag = `${root.tag}-${await digest(INSIDE_DIRECTORY)}`
  const name = `${REPOSITORY}:${tag}`
  if (await hasImage(docker, name)) return name
  if (checksOnly) throw new ServiceError('sandbox_unavailable', 'The sandbox image has not been built yet.')
  onProgress(ROOT_SHARE, "importing the sandbox's image (400 MB)")
  await importImage(docker, root.directory, tag, signal)
  return name
}

/**
 * Ensures that the daemon has an image that an operator built and named.
 *
 * @throws Error of the daemon if the image is neither on the machine nor in a registry. The abort reason if aborted
 */
async function pullImage(docker: Docker, name: string, options: ImageOptions): Promise<void> {
  const { onProgress, signal, checksOnly } = options
  if (await hasImage(docker, name)) return
  if (checksOnly)
    throw new ServiceError('sandbox_unavailable', `The Docker daemon does not have the image ${name} yet.`)
  onProgress(0, `pulling the image ${name}`)
  const abortSignal = AbortSignal.any([signal, AbortSignal.timeout(IMPORT_MS_MAX)])
  await followed(docker, await docker.pull(name, { abortSignal }))
}

async function hasImage(docker: Docker, name: string): Promise<boolean> {
  try {
    await docker.getImage(name).inspect()
    return true
  } catch (error) {
    if ((error as { statusCode?: number }).statusCode === 404) return false
    throw error
  }
}

/**
 * Imports the root file system as an image. The image also contains Sluice's sandbox code. The code cannot be mounted, because the daemon may run on
 * another machine.
 */
async function importImage(docker: Docker, root: string, tag: string, signal: AbortSignal): Promise<void> {
  const abortSignal = AbortSignal.any([signal, AbortSignal.timeout(IMPORT_MS_MAX)])
  const names = await codeFiles(INSIDE_DIRECTORY)
  const owner = ['--numeric-owner', '--owner=0', '--group=0']
  // Moves the code files to opt/sandbox. The pattern matches names without a leading dot, and only the code files have such names. The flags S and H
  // exclude the targets of links from the change.
  const move = '--transform=s,^\\([^./]\\),opt/sandbox/\\1,SH'
  const tar = spawn('tar', [...owner, move, '-cf', '-', '-C', root, '.', '-C', INSIDE_DIRECTORY, ...names], {
    stdio: ['ignore', 'pipe', 'pipe'],
    signal: abortSignal,
  })
  const problems = text(tar.stderr)
  const exited = once(tar, 'exit')
  const answer = await docker.importImage(tar.stdout, { repo: REPOSITORY, tag, abortSignal })
  await followed(docker, answer)
  const [code] = await exited
  if (code !== 0) {
    // A partial image is removed, because the next start would use it as if it were complete.
    await docker.getImage(`${REPOSITORY}:${tag}`).remove()
    throw new ServiceError('sandbox_unavailable', `tar failed: ${(await problems).slice(-300)}`)
  }
}

async function followed(docker: Docker, progress: NodeJS.ReadableStream): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  docker.modem.followProgress(progress, (error) => (error ? reject(error) : resolve()))
  await promise
}

async function digest(directory: string): Promise<string> {
  const hash = createHash('sha256')
  for (const name of await codeFiles(directory)) {
    hash.update(`${name}\n`).update(await readFile(join(directory, name)))
  }
  return hash.digest('hex').slice(0, 12)
}

async function codeFiles(directory: string): Promise<string[]> {
  return (await readdir(directory, { recursive: true })).filter((name) => /\.(py|txt)$/.test(name)).sort()
}

/**
 * Minimum age in seconds of a container that is removed. A younger container may belong to another service that is
 * about to start it.
 */
const LEFTOVER_SECONDS = 120
const REMOVE_MS_MAX = 10_000

/**
 * Removes containers that a killed service has left: never started, or ended without being removed. Running containers are not removed, because they
 * end by themselves after their service has ended.
 *
 * @param olderThanSeconds Minimum age. Default: two minutes.
 * @throws Error of the daemon if it does not list containers
 */
export async function removeLeftovers(docker: Docker, log: Log, olderThanSeconds = LEFTOVER_SECONDS): Promise<void> {
  const filters = { label: [LABEL], status: ['created', 'exited', 'dead'] }
  const abortSignal = AbortSignal.timeout(REMOVE_MS_MAX)
  for (const { Id, Created, Status } of await docker.listContainers({ all: true, filters, abortSignal })) {
    if (Date.now() / 1000 - Created < olderThanSeconds) continue
    log.info({ container: Id, status: Status }, 'removing a sandbox container of a process that ended')
    const gone = docker.getContainer(Id).remove({ force: true, v: true, abortSignal })
    await gone.catch((error: unknown) =>
      log.warn(
        { err: error, container: Id },
        'sandbox container could not be removed; the next start of this service removes it',
      ),
    )
  }
}
