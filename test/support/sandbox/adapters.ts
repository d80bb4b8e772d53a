/** Opens the sandboxes that this machine can run, for tests. */
import { homedir } from 'node:os'
import { join } from 'node:path'
import { inject } from 'vitest'
import { ServiceError } from '#shared/lib/error.ts'
import { openLog } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter, SandboxName } from '#shared/sandbox/sandbox.ts'

/**
 * Directory of the prepared sandboxes. The directory is kept between test runs, because a preparation downloads 100 MB and compiles for a minute.
 */
export const SANDBOX_DIRECTORY = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'sandbox')
/** Timeout of a vitest hook that prepares a sandbox. */
export const PREPARE_MS = 900_000

const log = openLog('silent', 'test')
const LOADERS: Record<SandboxName, () => Promise<SandboxAdapter>> = {
  docker: async () => {
    const socketPath = inject('docker')
    if (socketPath === null) throw new ServiceError('sandbox_unavailable', 'no Docker daemon')
    const { dockerAdapter } = await import('#shared/sandbox/docker/docker.ts')
    return dockerAdapter({ directory: SANDBOX_DIRECTORY, log, socketPath })
  },
  zygote: async () => {
    const { zygoteAdapter } = await import('#shared/sandbox/zygote/zygote.ts')
    return zygoteAdapter({ directory: SANDBOX_DIRECTORY, log })
  },
  wasm: async () => {
    const { wasmAdapter } = await import('#shared/sandbox/wasm/wasm.ts')
    return wasmAdapter({ directory: SANDBOX_DIRECTORY, log })
  },
}
/** Sandboxes that need no Docker daemon. In CI, a test fails if one of them cannot run. A missing Docker only skips the tests of its sandbox. */
const ALWAYS: readonly SandboxName[] = ['zygote', 'wasm']

/**
 * Prepares and opens a sandbox; the caller closes it.
 *
 * @returns The sandbox, or the reason why it cannot run here, which is printed
 */
export async function openSandbox(name: SandboxName): Promise<Sandbox | string> {
  const signal = AbortSignal.timeout(PREPARE_MS)
  try {
    const adapter = await LOADERS[name]()
    await adapter.prepare(() => {}, signal)
    return await adapter.open(signal)
  } catch (error) {
    if (ServiceError.from(error).code !== 'sandbox_unavailable') throw error
    if (process.env.CI === 'true' && ALWAYS.includes(name)) throw error
    const { message } = error as Error
    process.stderr.write(`Tests on the sandbox ${name} are skipped: ${message}\n`)
    return message
  }
}
