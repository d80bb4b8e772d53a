/** Opens the real sandbox `zygote` for tests. The root directory is prepared once per machine; each test file starts a zygote process of its own. */
import { openLog } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import { type ZygoteOptions, zygoteAdapter } from '#shared/sandbox/zygote/zygote.ts'
import { PREPARE_MS, SANDBOX_DIRECTORY } from './adapters.ts'

/** Directory in which test runs keep the root and other files of the sandbox. */
export const SANDBOX_DIR = SANDBOX_DIRECTORY

/** Returns the adapter `zygote`, with the root directory that all tests share. */
export async function testZygote(options: Partial<ZygoteOptions> = {}): Promise<SandboxAdapter> {
  return zygoteAdapter({ directory: SANDBOX_DIR, log: openLog('silent', 'test'), ...options })
}

/** Opens a sandbox that only the caller uses and must close. */
export async function openTestZygote(options: Partial<ZygoteOptions> = {}): Promise<Sandbox> {
  const adapter = await testZygote(options)
  return await adapter.open(AbortSignal.timeout(PREPARE_MS))
}

/** Reason why the sandbox cannot run on this machine; undefined if it can. With CI=true, the reason is thrown as an error. */
export const SANDBOX_MISSING: string | undefined = await findProblem()

/**
 * Opens a sandbox, because only that shows whether the sandbox works on this machine. Opening also prepares the root directory for later test
 * files.
 */
async function findProblem(): Promise<string | undefined> {
  try {
    await (await openTestZygote()).close()
    return undefined
  } catch (error) {
    if (process.env.CI === 'true') throw error
    const { message } = error as Error
    process.stderr.write(`Tests on the zygote sandbox are skipped: ${message}\n`)
    return message
  }
}
