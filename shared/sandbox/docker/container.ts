import type { Duplex } from 'node:stream'
import type Docker from 'dockerode'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { Channel, encodeJob } from '#shared/sandbox/channel.ts'
import { MEMORY_BYTES_MAX, PROCESSES_MAX, SCRATCH_BYTES_MAX } from '#shared/sandbox/limits.ts'
import { INSIDE_PYTHON, INSIDE_VARIABLES } from '#shared/sandbox/root/root.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from '#shared/sandbox/sandbox.ts'
import type { PoolMember } from './pool.ts'
import { SECCOMP_PROFILE } from './seccomp.ts'
import { AttachedStreams } from './streams.ts'

/*
 * One container: one interpreter, one run.
 *
 *   created → started → ready (reported by the supervisor) → running → ended → removed
 *      └─────────┴─────────┴── the stream closes, or the service removes it: the container ends with all its processes
 *
 * A ready container can take a job, and continues to load libraries until it has one.
 *
 * The supervisor ends when the stream closes. A service that was killed therefore leaves no container behind.
 */

/** Label of our containers, by which the leftovers of a killed service are found. The value is the process id of the service. */
export const LABEL = 'sluice.sandbox'
/** Tolerated delay beyond the run's timeout, which the supervisor enforces. A later supervisor is considered broken. */
const GRACE_MS = 2_000
/** Maximum time to load the libraries that the program imports, before its timeout begins: a second of CPU, but many on a busy machine. */
const LOAD_MS_MAX = 60_000
/** Time within which a supervisor must exit after its last message. */
const END_MS_MAX = 2_000
const REMOVE_MS_MAX = 10_000
/** Memory of an interpreter before a run, in addition to the scratch space, which also counts as memory. */
const WARM_BYTES = 256 * 1024 * 1024
const SCRATCH_FILES_MAX = 8_192
const NOBODY = 65_534
const ERROR_CHARS_MAX = 2_000
/** Paths hidden from a container. Otherwise they would reveal the machine's hardware, load, name and name server. */
const MASKED = ['/sys', '/etc/hostname', '/etc/hosts', '/etc/resolv.conf', '/proc/cmdline', '/proc/partitions']
const MASKED_IN_PROC = [
  'acpi',
  'asound',
  'diskstats',
  'interrupts',
  'kcore',
  'keys',
  'latency_stats',
  'loadavg',
  'pressure',
  'sched_debug',
  'scsi',
  'timer_list',
  'uptime',
  'vmstat',
]
const READ_ONLY = ['bus', 'fs', 'irq', 'sys', 'sysrq-trigger']

export interface ContainerOptions {
  readonly image: string
  /** Docker's name of the runtime; default: Docker's own default. */
  readonly runtime?: string | undefined
  readonly onProblem: (error: unknown) => void
}

export class SandboxContainer implements PoolMember {
  readonly ended: Promise<void>
  versions: Readonly<Record<string, string>> = {}
  readonly #container: Docker.Container
  readonly #onProblem: (error: unknown) => void
  readonly #hasEnded = Promise.withResolvers<void>()
  readonly #isReady = Promise.withResolvers<void>()
  readonly #end = Promise.withResolvers<SandboxEnd>()
  #stream: Duplex | undefined
  #onEvent: (event: SandboxEvent) => void = () => {}
  #errors = ''
  /** Whether the supervisor has sent its last message and is exiting. */
  #isEnding = false
  #removed: Promise<void> | undefined

  private constructor(container: Docker.Container, onProblem: (error: unknown) => void) {
    this.#container = container
    this.#onProblem = onProblem
    this.ended = this.#hasEnded.promise
    // Prevents unhandled rejections if the container breaks while no call waits.
    this.#isReady.promise.catch(() => {})
    this.#end.promise.catch(() => {})
  }

  /**
   * Starts a container and waits until it can take a job.
   *
   * @throws ServiceError `sandbox_unavailable` if it ends before that; an error of the daemon; the abort reason
   */
  static async start(docker: Docker, options: ContainerOptions, signal: AbortSignal): Promise<SandboxContainer> {
    // The name is chosen here, so that a container can be removed even if its creation was interrupted.
    const name = newId('sluice-sandbox-', 16)
    const started = new SandboxContainer(docker.getContainer(name), options.onProblem)
    try {
      await docker.createContainer({ ...containerOptions(options), name, abortSignal: signal })
      await started.#start(signal)
      return started
    } catch (error) {
      await started.dispose()
      throw signal.aborted ? signal.reason : error
    }
  }

  async run(job: SandboxJob, onEvent: (event: SandboxEvent) => void, signal: AbortSignal): Promise<SandboxEnd> {
    const detail = await runYielding(encodeJob(job), signal)
    const late = setTimeout(() => this.#end.resolve({ type: 'timeout' }), LOAD_MS_MAX + job.timeoutMs + GRACE_MS)
    const leave = () => this.#end.reject(signal.reason)
    if (signal.aborted) leave()
    signal.addEventListener('abort', leave, { once: true })
    try {
      this.#onEvent = onEvent
      this.#stream?.write(detail)
      return await this.#end.promise
    } finally {
      this.#onEvent = () => {}
      clearTimeout(late)
      signal.removeEventListener('abort', leave)
    }
  }

  /** Ends and removes the container. Never throws: a container that cannot be removed now is removed at the next start of a service. */
  dispose(): Promise<void> {
    this.#removed ??= this.#remove().finally(() => this.#stream?.destroy())
    return this.#removed
  }

  async #start(signal: AbortSignal): Promise<void> {
    const attached = { stream: true, hijack: true, stdin: true, stdout: true, stderr: true, abortSignal: signal }
    // One socket serves both directions, despite its type.
    const stream = (await this.#container.attach(attached)) as Duplex
    this.#stream = stream
    this.#listen(stream)
    await this.#container.start({ abortSignal: signal })
    const leave = () => this.#isReady.reject(signal.reason)
    signal.addEventListener('abort', leave, { once: true })
    try {
      await this.#isReady.promise
    } finally {
      signal.removeEventListener('abort', leave)
    }
  }

  #listen(stream: Duplex): void {
    const channel = new Channel({
      onReady: (versions) => {
        this.versions = versions
        this.#isReady.resolve()
      },
      onEvent: (event) => this.#onEvent(event),
      onEnd: (end) => {
        this.#isEnding = true
        this.#end.resolve(end)
      },
    })
    const streams = new AttachedStreams((name, bytes) => {
      if (name === 'stdout') channel.take(bytes)
      else this.#errors = (this.#errors + bytes.toString('latin1')).slice(-ERROR_CHARS_MAX)
    })
    stream.on('data', (chunk: Buffer) => {
      try {
        streams.take(chunk)
      } catch (error) {
        stream.destroy(error as Error)
      }
    })
    let failure: unknown
    stream.on('error', (error) => {
      failure = error
    })
    stream.on('close', () => this.#closed(failure))
    // The daemon has closed its side. Without this a half-open socket would never close.
    stream.on('end', () => stream.destroy())
  }

  #closed(failure: unknown): void {
    const cause = failure ?? new Error(this.#errors.trim() || 'The container ended without output.')
    const detail = this.#errors.trim().split('\n').at(-1) ?? ''
    const message = `The sandbox container does not start: ${detail || cause}`
    this.#isReady.reject(new ServiceError('sandbox_unavailable', message, { cause }))
    this.#end.reject(new ServiceError('sandbox_lost', 'The sandbox failed while the code was running.', { cause }))
    this.#hasEnded.resolve()
  }

  async #remove(): Promise<void> {
    try {
      if (this.#isEnding && (await this.#removesItself())) return
      await this.#container.remove({ force: true, v: true, abortSignal: AbortSignal.timeout(REMOVE_MS_MAX) })
    } catch (error) {
      if (!isGone(error)) this.#onProblem(error)
    }
  }

  /** Waits for a container that exits by itself, which saves the daemon a kill. Returns false on timeout. */
  async #removesItself(): Promise<boolean> {
    const abortSignal = AbortSignal.timeout(END_MS_MAX)
    return await this.#container.wait({ condition: 'removed', abortSignal }).then(() => true, isGone)
  }
}

/** Whether the container was already removed, or is being removed by AutoRemove. */
function isGone(error: unknown): boolean {
  const { statusCode } = error as { statusCode?: number }
  return statusCode === 404 || statusCode === 409
}

function containerOptions({ image, runtime }: ContainerOptions): Docker.ContainerCreateOptions {
  return {
    Image: image,
    Entrypoint: [INSIDE_PYTHON, '-s', '-X', 'frozen_modules=on', '/opt/sandbox/container.py'],
    Cmd: [],
    Env: Object.entries(INSIDE_VARIABLES).map(([name, value]) => `${name}=${value}`),
    User: `${NOBODY}:${NOBODY}`,
    WorkingDir: '/tmp',
    Hostname: 'sandbox',
    Labels: { [LABEL]: String(process.pid) },
    // An empty network namespace as with 'none', but without the daemon process that sets it up: 0.1 s of CPU less.
    NetworkDisabled: true,
    OpenStdin: true,
    // The daemon closes standard input when the service is gone; then the supervisor exits.
    StdinOnce: true,
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    HostConfig: hostConfig(runtime),
  }
}

/** The host configuration of a container, with an option that the types of the library lack. */
function hostConfig(runtime: string | undefined): Docker.HostConfig & { CgroupnsMode: string } {
  const memory = MEMORY_BYTES_MAX + SCRATCH_BYTES_MAX + WARM_BYTES
  const scratch = `rw,noexec,nosuid,nodev,size=${SCRATCH_BYTES_MAX},nr_inodes=${SCRATCH_FILES_MAX},uid=${NOBODY},gid=${NOBODY}`
  return {
    ...(runtime === undefined ? {} : { Runtime: runtime }),
    AutoRemove: true,
    NetworkMode: 'none',
    IpcMode: 'none',
    CgroupnsMode: 'private',
    ReadonlyRootfs: true,
    Tmpfs: { '/tmp': scratch },
    CapDrop: ['ALL'],
    SecurityOpt: ['no-new-privileges:true', `seccomp=${SECCOMP_PROFILE}`],
    MaskedPaths: [...MASKED, ...MASKED_IN_PROC.map((name) => `/proc/${name}`)],
    ReadonlyPaths: READ_ONLY.map((name) => `/proc/${name}`),
    Memory: memory,
    // Equal to the memory limit: no swap.
    MemorySwap: memory,
    NanoCpus: 1_000_000_000,
    // One more for the supervisor.
    PidsLimit: PROCESSES_MAX + 1,
    // The kernel kills containers before the service's own processes.
    OomScoreAdj: 500,
    LogConfig: { Type: 'none', Config: {} },
  }
}
