import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createConnection, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { Channel, encodeJob } from '#shared/sandbox/channel.ts'
import { INSIDE_DIRECTORY, INSIDE_PYTHON, INSIDE_VARIABLES } from '#shared/sandbox/root/root.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from '#shared/sandbox/sandbox.ts'

/** Maximum time in ms to load the libraries. The first start on a busy machine reads 300 MB. */
const START_MS_MAX = 60_000
const STOP_MS_MAX = 5_000
/**
 * Maximum time in ms that a run takes in addition to its timeout: before its first instruction, and to report its end.
 */
const SETUP_MS_MAX = 3_000
const OVERDUE_MS = 2_000
const ERROR_TEXT_MAX = 4_096
/** Bytes of /tmp for the zygote itself, which stores the caches of matplotlib. Each run has its own /tmp. */
const OWN_SCRATCH_BYTES = 16 * 1024 * 1024
const NOBODY = 65_534
const DEVICES = ['null', 'zero', 'full', 'random', 'urandom']
/** Capabilities that are needed to change to the unprivileged user. The process drops them afterwards. */
const BECOME_NOBODY = ['--cap-add', 'CAP_SETUID', '--cap-add', 'CAP_SETGID', '--cap-add', 'CAP_SETPCAP']

const Ready = z.object({ msg: z.literal('ready'), versions: z.record(z.string(), z.string()) })

export interface ZygoteParts {
  readonly bubblewrap: string
  readonly root: string
}

export class ZygoteProcess {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>
  readonly #runDir: string
  readonly #sockets = new Set<Socket>()
  readonly startedMs = performance.now()
  readonly exited: Promise<void>
  versions: Readonly<Record<string, string>> = {}
  runs = 0
  #errors = ''
  #isRetired = false

  private constructor(child: ChildProcessByStdio<Writable, Readable, Readable>, runDir: string) {
    this.#child = child
    this.#runDir = runDir
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errors = (this.#errors + text).slice(-ERROR_TEXT_MAX)
    })
    child.stdin.on('error', () => {})
    const removed = () => rm(runDir, { recursive: true, force: true }).catch(() => {})
    // The directory is also removed if the process was killed without a call of {@link stop}.
    this.exited = once(child, 'close').then(removed, (error: Error) => {
      this.#errors = error.message
      return removed()
    })
  }

  /**
   * Starts a zygote and waits until it can fork.
   *
   * @throws ServiceError `sandbox_unavailable` with its last output if it does not start, or the abort reason
   */
  static async start(parts: ZygoteParts, signal: AbortSignal): Promise<ZygoteProcess> {
    signal.throwIfAborted()
    const runDir = await mkdtemp(join(tmpdir(), 'sluice-zygote-'))
    const child = spawn(parts.bubblewrap, bubblewrapOptions(parts, runDir, await canBecomeNobody()), {
      stdio: ['pipe', 'pipe', 'pipe'],
      // Ctrl-C in a terminal signals the whole process group. In its own group, the zygote continues until the service has drained its runs.
      detached: true,
      env: {},
    })
    const zygote = new ZygoteProcess(child, runDir)
    try {
      zygote.versions = await zygote.#untilReady(AbortSignal.any([signal, AbortSignal.timeout(START_MS_MAX)]))
      return zygote
    } catch (cause) {
      await zygote.stop()
      signal.throwIfAborted()
      const reason = zygote.errors.split('\n').at(-1) || (cause instanceof Error ? cause.message : String(cause))
      throw new ServiceError('sandbox_unavailable', `The sandbox zygote did not start: ${reason}`, {
        cause: new Error(zygote.errors, { cause }),
      })
    }
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  get busy(): number {
    return this.#sockets.size
  }

  get errors(): string {
    return this.#errors.trim()
  }

  /**
   * Runs a job in a fork (see `Sandbox.run`).
   *
   * @throws ServiceError `sandbox_lost`, or the signal's reason
   */
  async run(job: SandboxJob, onEvent: (event: SandboxEvent) => void, signal: AbortSignal): Promise<SandboxEnd> {
    signal.throwIfAborted()
    this.runs += 1
    const { promise, resolve, reject } = Promise.withResolvers<SandboxEnd>()
    // While the job is still being written, no caller waits for this promise. Without this handler, the loss of the run
    // would end the service.
    promise.catch(() => {})
    const socket = createConnection(join(this.#runDir, 'zygote.sock'))
    const channel = new Channel({ onEvent, onEnd: resolve })
    const leave = () => reject(signal.reason)
    const isOverdue = () => reject(lost(new Error('The sandbox zygote did not end in time.')))
    const overdue = setTimeout(isOverdue, SETUP_MS_MAX + job.timeoutMs + OVERDUE_MS)
    this.#sockets.add(socket)
    signal.addEventListener('abort', leave, { once: true })
    socket.on('error', (cause) => reject(lost(cause)))
    socket.on('close', () => reject(lost(new Error(this.errors))))
    socket.on('data', (chunk) => attempt(() => channel.take(chunk), reject))
    try {
      socket.write(await runYielding(encodeJob(job), signal))
      return await promise
    } finally {
      clearTimeout(overdue)
      signal.removeEventListener('abort', leave)
      // Closing the connection makes the supervisor kill its run.
      socket.destroy()
      this.#sockets.delete(socket)
      this.#stopWhenDone()
    }
  }

  retire(): void {
    this.#isRetired = true
    this.#stopWhenDone()
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    // Closing the input ends the zygote. Bubblewrap then ends all processes of the zygote.
    this.#child.stdin.end()
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MS_MAX)
    await this.exited
    clearTimeout(timer)
  }

  #stopWhenDone(): void {
    if (this.#isRetired && this.busy === 0) void this.stop()
  }

  async #untilReady(signal: AbortSignal): Promise<Readonly<Record<string, string>>> {
    const lines = createInterface({ input: this.#child.stdout })
    const gone = this.exited.then(() => Promise.reject(new Error('The sandbox process ended before it was ready.')))
    gone.catch(() => {})
    const [line] = (await Promise.race([once(lines, 'line', { signal }), gone])) as [string]
    lines.close()
    return Ready.parse(JSON.parse(line)).versions
  }
}

/** Whether this process may change to the unprivileged user. Not possible if this process is root in a user namespace that maps no other user. */
async function canBecomeNobody(): Promise<boolean> {
  if (process.getuid?.() !== 0) return false
  const ranges = (await readFile('/proc/self/uid_map', 'utf8')).trim().split('\n')
  return ranges.some((range) => {
    const [first = 0, , count = 0] = range.trim().split(/\s+/).map(Number)
    return first <= NOBODY && NOBODY < first + count
  })
}

/**
 * Returns the options of bubblewrap. Root makes the mounts with its own rights, because the unprivileged user may not be able to reach the
 * directories.
 */
function bubblewrapOptions({ root }: ZygoteParts, runDir: string, isRoot: boolean): string[] {
  const user = isRoot
    ? ['--cap-drop', 'ALL', ...BECOME_NOBODY]
    : ['--unshare-user', '--uid', String(NOBODY), '--gid', String(NOBODY)]
  return [
    ...['--unshare-pid', '--unshare-net', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try'],
    ...['--hostname', 'sandbox', '--as-pid-1', '--die-with-parent', '--new-session'],
    ...user,
    ...['--ro-bind', root, '/', '--ro-bind', INSIDE_DIRECTORY, '/opt/sandbox', '--bind', runDir, '/run'],
    ...[
      '--proc',
      '/proc',
      '--perms',
      '1777',
      '--size',
      String(OWN_SCRATCH_BYTES),
      '--tmpfs',
      '/tmp',
      '--size',
      '4096',
      '--tmpfs',
      '/dev',
    ],
    ...DEVICES.flatMap((name) => ['--dev-bind', `/dev/${name}`, `/dev/${name}`]),
    ...['--remount-ro', '/dev', '--chdir', '/tmp', '--clearenv'],
    ...Object.entries(INSIDE_VARIABLES).flatMap(([name, value]) => ['--setenv', name, value]),
    ...[INSIDE_PYTHON, '-S', '-s', '/opt/sandbox/zygote.py', '/run/zygote.sock'],
  ]
}

function lost(cause: unknown): ServiceError {
  return new ServiceError('sandbox_lost', 'The sandbox failed while the code was running.', { cause })
}

function attempt(work: () => void, onError: (error: unknown) => void): void {
  try {
    work()
  } catch (error) {
    onError(error)
  }
}
