/** The real sandbox for tests: its root is prepared once a machine, its zygote started by each file that asks. */
import { openLog } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import { type ZygoteOptions, zygoteAdapter } from '#shared/sandbox/zygote/zygote.ts'
import { PREPARE_MS, SANDBOX_DIRECTORY } from './adapters.ts'

/** Where test runs keep the sandbox's root and its other files. */
export const SANDBOX_DIR = SANDBOX_DIRECTORY

/** The zygote's adapter on the root that all tests share. */
export async function testZygote(options: Partial<ZygoteOptions> = {}): Promise<SandboxAdapter> {
  return zygoteAdapter({ directory: SANDBOX_DIR, log: openLog('silent', 'test'), ...options })
}

/** Opens a zygote of a test's own. The caller closes it. */
export async function openTestZygote(options: Partial<ZygoteOptions> = {}): Promise<Sandbox> {
  const adapter = await testZygote(options)
  return await adapter.open(AbortSignal.timeout(PREPARE_MS))
}

/** Why there is no sandbox on this machine; undefined where there is. With CI=true a missing one is an error. */
export const SANDBOX_MISSING: string | undefined = await findProblem()

/** Only a run tells; it prepares the root for all files that come after. */
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
