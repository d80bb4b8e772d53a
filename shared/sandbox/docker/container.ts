import type { Duplex } from 'node:stream'
import type Docker from 'dockerode'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { Channel, encodeJob } from '#shared/sandbox/channel.ts'
import { MEMORY_BYTES_MAX, PROCESSES_MAX, SCRATCH_BYTES_MAX } from '#shared/sandbox/limits.ts'
import { INSIDE_PYTHON, INSIDE_VARIABLES } from '#shared/sandbox/root/root.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from '#shared/sandbox/sandbox.ts'
import { runYielding } from '#shared/yielding.ts'
import type { PoolMember } from './pool.ts'
import { SECCOMP_PROFILE } from './seccomp.ts'
import { AttachedStreams } from './streams.ts'

/*
 * One container: one interpreter, one run.
 *
 *   created → started → ready (its supervisor said so) → running → ended → removed
 *      └─────────┴─────────┴── the stream closes, or we remove it: it ends, with all that is in it
 *
 * A ready one can take a job, and goes on loading libraries until it has one.
 *
 * The stream is its life: the supervisor ends when it closes, so that a service that was killed leaves none behind.
 */

/** Marks our containers, to find those that a killed service left. Its value is the number of the service's process. */
export const LABEL = 'sluice.sandbox'
/** The supervisor keeps the time; one that is this late does not. */
const GRACE_MS = 2_000
/** That time begins when it has loaded what the program names: a second of CPU, many on a machine that is busy. */
const LOAD_MS_MAX = 60_000
/** A supervisor that has said its last is gone much sooner. */
const END_MS_MAX = 2_000
const REMOVE_MS_MAX = 10_000
/** What an interpreter has before a run, beside the scratch space, which counts as memory too. */
const WARM_BYTES = 256 * 1024 * 1024
const SCRATCH_FILES_MAX = 8_192
const NOBODY = 65_534
const ERROR_CHARS_MAX = 2_000
/** What a container can see of this machine without these: its hardware, its load, its name, its name server. */
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

/** What a container is made of. */
export interface ContainerOptions {
  readonly image: string
  /** Docker's name of the runtime; default its own. */
  readonly runtime?: string | undefined
  /** Hears of a container that could not be removed. */
  readonly onProblem: (error: unknown) => void
}

/** A container with a warm interpreter. It serves one run; whoever has it disposes it. */
export class SandboxContainer implements PoolMember {
  readonly ended: Promise<void>
  /** Version of each library, by the name it is imported by. */
  versions: Readonly<Record<string, string>> = {}
  readonly #container: Docker.Container
  readonly #onProblem: (error: unknown) => void
  readonly #hasEnded = Promise.withResolvers<void>()
  readonly #isReady = Promise.withResolvers<void>()
  readonly #end = Promise.withResolvers<SandboxEnd>()
  #stream: Duplex | undefined
  #onEvent: (event: SandboxEvent) => void = () => {}
  #errors = ''
  /** The supervisor has said the last, and leaves. */
  #isEnding = false
  #removed: Promise<void> | undefined

  private constructor(container: Docker.Container, onProblem: (error: unknown) => void) {
    this.#container = container
    this.#onProblem = onProblem
    this.ended = this.#hasEnded.promise
    // Nobody may be waiting when it breaks.
    this.#isReady.promise.catch(() => {})
    this.#end.promise.catch(() => {})
  }

  /**
   * Starts one and waits until it can take a job.
   *
   * @throws ServiceError `sandbox_unavailable` when it ends before that; an error of the daemon; the abort reason
   */
  static async start(docker: Docker, options: ContainerOptions, signal: AbortSignal): Promise<SandboxContainer> {
    // Named by us, so that one whose making was interrupted can be removed as well.
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

  /** Runs a job. Call it once. @throws ServiceError `sandbox_lost`; the signal's reason */
  async run(job: SandboxJob, onEvent: (event: SandboxEvent) => void, signal: AbortSignal): Promise<SandboxEnd> {
    const said = await runYielding(encodeJob(job), signal)
    const late = setTimeout(() => this.#end.resolve({ type: 'timeout' }), LOAD_MS_MAX + job.timeoutMs + GRACE_MS)
    const leave = () => this.#end.reject(signal.reason)
    if (signal.aborted) leave()
    signal.addEventListener('abort', leave, { once: true })
    try {
      this.#onEvent = onEvent
      this.#stream?.write(said)
      return await this.#end.promise
    } finally {
      this.#onEvent = () => {}
      clearTimeout(late)
      signal.removeEventListener('abort', leave)
    }
  }

  /** Ends and removes it, and never fails: what cannot be removed now is at the next start of a service. */
  dispose(): Promise<void> {
    this.#removed ??= this.#remove().finally(() => this.#stream?.destroy())
    return this.#removed
  }

  async #start(signal: AbortSignal): Promise<void> {
    const attached = { stream: true, hijack: true, stdin: true, stdout: true, stderr: true, abortSignal: signal }
    // The same socket in both directions, whatever its type says.
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
    // The other side is done; a half-open socket would never close.
    stream.on('end', () => stream.destroy())
  }

  #closed(failure: unknown): void {
    const cause = failure ?? new Error(this.#errors.trim() || 'The container ended and said nothing.')
    const said = this.#errors.trim().split('\n').at(-1) ?? ''
    const message = `The sandbox's container does not start: ${said || cause}`
    this.#isReady.reject(new ServiceError('sandbox_unavailable', message, { cause }))
    this.#end.reject(new ServiceError('sandbox_lost', 'The sandbox broke while the code was running.', { cause }))
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

  /** Spares the daemon a process that kills. False when it takes too long. */
  async #removesItself(): Promise<boolean> {
    const abortSignal = AbortSignal.timeout(END_MS_MAX)
    return await this.#container.wait({ condition: 'removed', abortSignal }).then(() => true, isGone)
  }
}

/** Gone, or about to: a container removes itself when it ends. */
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
    // A network namespace without anything, as with 'none', and without a daemon's process to set that up: 0.1 s of CPU.
    NetworkDisabled: true,
    OpenStdin: true,
    // The daemon closes standard input when we are gone, and the supervisor ends.
    StdinOnce: true,
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    HostConfig: hostConfig(runtime),
  }
}

/** Also what the types do not know yet. */
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
    // The same number: no swap.
    MemorySwap: memory,
    NanoCpus: 1_000_000_000,
    // The supervisor is one of them.
    PidsLimit: PROCESSES_MAX + 1,
    // Before the service's own processes.
    OomScoreAdj: 500,
    LogConfig: { Type: 'none', Config: {} },
  }
}
