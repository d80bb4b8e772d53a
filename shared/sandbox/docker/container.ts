import { readFileSync } from 'node:fs'
import type { Duplex } from 'node:stream'
import type Docker from 'dockerode'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { Channel, encodeJob } from '#shared/sandbox/channel.ts'
import { MEMORY_BYTES_MAX, PROCESSES_MAX, SCRATCH_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'
import { INSIDE_PYTHON, INSIDE_VARIABLES } from '#shared/sandbox/root/root.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from '#shared/sandbox/sandbox.ts'
import type { PoolMember } from './pool.ts'

/** Label that identifies containers of a killed service. The value is the process id of the service. */
export const LABEL = 'sluice.sandbox'
/**
 * The supervisor ends a run at its timeout and reports the end. If no report arrives within this time in ms after the timeout, then the supervisor
 * counts as broken.
 */
const GRACE_MS = 2_000
/** Maximum time in ms to load the libraries that the program imports, before its timeout starts. Loading takes a second of CPU time. */
const LOAD_MS_MAX = 60_000
/** Time in ms within which a supervisor must exit after its last message. */
const END_MS_MAX = 2_000
const REMOVE_MS_MAX = 10_000
/**
 * Memory limit in bytes for the interpreter itself. The memory of the program and the size of the scratch space, which
 * is kept in memory, are added to this limit.
 */
const WARM_BYTES = 256 * 1024 * 1024
const SCRATCH_FILES_MAX = 8_192
const NOBODY = 65_534
const ERROR_CHARS_MAX = 2_000
/** Paths hidden from a container, because they reveal the hardware, load, name and name server of the machine. */
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

interface ContainerOptions {
  readonly image: string
  readonly runtime?: string | undefined
  readonly onProblem: (error: unknown) => void
}

/**
 * One container, which contains one interpreter and serves one run.
 *
 *     created → started → ready (reported by the supervisor) → running → ended → removed
 *        └─────────┴─────────┴── the stream closes, or the service removes it: the container ends with all its processes
 *
 * A ready container can take a job. Until it has a job, it continues to load libraries.
 *
 * The supervisor ends when the stream closes. A service that was killed therefore leaves no container behind.
 */
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
  /** True after the last message of the supervisor, which then exits by itself. */
  #isEnding = false
  #removed: Promise<void> | undefined

  private constructor(container: Docker.Container, onProblem: (error: unknown) => void) {
    this.#container = container
    this.#onProblem = onProblem
    this.ended = this.#hasEnded.promise
    // Empty handlers: if the container breaks while no call waits for these promises, an unhandled rejection would end the process.
    this.#isReady.promise.catch(() => {})
    this.#end.promise.catch(() => {})
  }

  /**
   * Starts a container and waits until it can take a job.
   *
   * @throws ServiceError `sandbox_unavailable` if the container ends first; an error of the daemon; the abort reason
   */
  static async start(docker: Docker, options: ContainerOptions, signal: AbortSignal): Promise<SandboxContainer> {
    // The name is chosen here, so that the container can be removed even if the response to its creation was lost.
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

  /** Ends and removes the container. Never throws. If the removal fails, then a later start of the service removes the container. */
  dispose(): Promise<void> {
    this.#removed ??= this.#remove().finally(() => this.#stream?.destroy())
    return this.#removed
  }

  async #start(signal: AbortSignal): Promise<void> {
    const attached = { stream: true, hijack: true, stdin: true, stdout: true, stderr: true, abortSignal: signal }
    // Docker's types declare a read-only stream, but the attached socket is used in both directions.
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
    // The daemon has closed its side of the socket. Without this handler, the half-open socket would never close.
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

  /** Waits until the container has exited and removed itself, which is cheaper than killing it. Returns false on timeout. */
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
    // Gives the container an empty network namespace. The network mode `none` has the same effect, but the daemon
    // starts an extra process for it (0.1 s of CPU).
    NetworkDisabled: true,
    OpenStdin: true,
    // When the service ends, the daemon closes standard input of the container, and the supervisor exits.
    StdinOnce: true,
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    HostConfig: hostConfig(runtime),
  }
}

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
    // `MemorySwap` limits memory and swap together. A value equal to the memory limit leaves no swap.
    MemorySwap: memory,
    NanoCpus: 1_000_000_000,
    PidsLimit: PROCESSES_MAX + 1,
    // If memory of the machine runs out, then the kernel kills containers before the processes of the service.
    OomScoreAdj: 500,
    LogConfig: { Type: 'none', Config: {} },
  }
}

const PART_BYTES_MAX = 16 * 1024 * 1024
const HEADER_BYTES = 8
const STDERR = 2

/**
 * Splits the attached stream of a container without a terminal into stdout and stderr.
 *
 * Grammar (Docker Engine API, ContainerAttach): one byte of stream type, three zeros, four bytes of big-endian length, data.
 *
 * docker-modem's `demuxStream` is not used, because it recurses for each part. A program that writes byte by byte would overflow the stack of the
 * worker.
 *
 * @param onPart Called with each piece. One part may arrive in several pieces
 */
export class AttachedStreams {
  readonly #onPart: (stream: 'stdout' | 'stderr', bytes: Buffer) => void
  #header = Buffer.alloc(0)
  #left = 0
  #stream: 'stdout' | 'stderr' = 'stdout'

  constructor(onPart: (stream: 'stdout' | 'stderr', bytes: Buffer) => void) {
    this.#onPart = onPart
  }

  take(chunk: Buffer): void {
    for (let rest = chunk; rest.length > 0; ) {
      if (this.#left === 0) {
        rest = this.#takeHeader(rest)
        continue
      }
      const part = rest.subarray(0, this.#left)
      this.#left -= part.length
      rest = rest.subarray(part.length)
      this.#onPart(this.#stream, part)
    }
  }

  #takeHeader(bytes: Buffer): Buffer {
    const missing = HEADER_BYTES - this.#header.length
    const header = Buffer.concat([this.#header, bytes.subarray(0, missing)])
    this.#header = header
    if (header.length === HEADER_BYTES) {
      const type = header.readUInt8(0)
      this.#left = header.readUInt32BE(4)
      if (type > STDERR || this.#left > PART_BYTES_MAX) throw new Error("The container's output has no stream headers.")
      this.#stream = type === STDERR ? 'stderr' : 'stdout'
      this.#header = Buffer.alloc(0)
    }
    return bytes.subarray(missing)
  }
}

/*
 * System calls that a sandbox container may make: an allow-list in the format of Docker's `--security-opt seccomp=`. The list applies to the whole
 * container. Before the program starts, its process also gives up the rights to fork, to execute files and to open sockets.
 *
 * Excluded on purpose are namespaces, mounts, keys, tracing, other processes' memory, BPF, io_uring, performance counters and userfaultfd. Also
 * excluded are kernel modules, clocks, host names, SysV IPC, file locks and all sockets, whose buffers are kernel memory. Asyncio therefore wakes up
 * without a socket (asyncio_wakeup.py).
 */

const CALLS = new URL('../python/seccomp/calls.txt', import.meta.url)
/** System calls of the supervisor, the first process of the container, which starts, limits and ends the program. */
const SUPERVISING = `
  capget capset execve fork kill pidfd_open pipe pipe2 seccomp setpgid setrlimit setsid sync_file_range tkill vfork`
/** Flags of clone(2) that create a namespace, which the filter refuses. */
const CLONE_NEW = 0x7e020080
/** Request of ioctl(2) that injects input into a terminal, which the filter refuses. */
const TIOCSTI = 0x5412
const ENOSYS = 38
const EPERM = 1

const ALLOW = 'SCMP_ACT_ALLOW'
const REFUSE = 'SCMP_ACT_ERRNO'

const SECCOMP_PROFILE = JSON.stringify({
  defaultAction: REFUSE,
  defaultErrnoRet: EPERM,
  archMap: [
    { architecture: 'SCMP_ARCH_X86_64', subArchitectures: [] },
    { architecture: 'SCMP_ARCH_AARCH64', subArchitectures: [] },
  ],
  syscalls: [
    { names: [...programCalls(), ...SUPERVISING.trim().split(/\s+/)], action: ALLOW },
    { names: ['clone'], action: ALLOW, args: [{ index: 0, value: CLONE_NEW, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }] },
    { names: ['ioctl'], action: ALLOW, args: [{ index: 1, value: TIOCSTI, op: 'SCMP_CMP_NE' }] },
    // The answer ENOSYS ("not implemented") makes glibc use older calls instead, whose arguments a filter can inspect.
    { names: ['clone3', 'openat2'], action: REFUSE, errnoRet: ENOSYS },
  ],
})

function programCalls(): string[] {
  const [, allowed = ''] = readFileSync(CALLS, 'utf8').split(/^\[\w+\]$/m)
  return [...allowed.matchAll(/(\w+)=/g)].map(([, name]) => String(name)).filter((name) => name !== 'ioctl')
}
