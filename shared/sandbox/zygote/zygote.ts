import { readFile } from 'node:fs/promises'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import { probed } from '#shared/sandbox/probe.ts'
import { prepareRoot } from '#shared/sandbox/root/root.ts'
import type { SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import { prepareBubblewrap } from './bubblewrap.ts'
import type { ZygoteParts } from './process.ts'
import { ZygoteSandbox } from './sandbox.ts'

const ROOT_SHARE = 0.98

const GUARANTEES = [
  'Each run is a fork of one warm interpreter, in user, process, mount, network, IPC and host name namespaces of its own.',
  'A run sees a read-only root file system without files of this machine. No network, no capabilities, two system call filters.',
  'A run has an unprivileged user, and limits on time, memory, threads, files and output. Nothing remains after its end.',
  'Runs of one zygote share its memory layout. The zygote is replaced after 500 runs or ten minutes.',
  'Runs share the kernel of this machine, so a kernel vulnerability can break the isolation. For hostile tenants, use docker with runsc.',
]

export interface ZygoteOptions {
  /** Directory of the root file system: about 400 MB. */
  readonly directory: string
  readonly log: Log
  /** The Python to copy; default: python3 of the PATH. */
  readonly python?: string | undefined
  /** Runs after which a zygote is replaced; default: 500. */
  readonly runsMax?: number | undefined
  /** Age at which a zygote is replaced; default: ten minutes. */
  readonly ageMsMax?: number | undefined
}

/** Sandboxes on Linux without further software: bubblewrap, and a fork of a warm interpreter for each run. */
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
        // Kernels and containers block namespaces in many ways, and only a run encounters them all.
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

/** The error of a lost run has no details for callers; the last line of the zygote's output has. */
function reasonOf({ code, message, cause }: ServiceError): string {
  const detail = code === 'sandbox_lost' && cause instanceof Error ? cause.message.split('\n').at(-1) : undefined
  return detail ? `The first run was lost: ${detail}.` : message
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
