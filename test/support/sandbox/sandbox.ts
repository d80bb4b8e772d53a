/** The real sandbox for tests. The root is prepared once per machine; each test file starts its own zygote. */
import { openLog } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import { type ZygoteOptions, zygoteAdapter } from '#shared/sandbox/zygote/zygote.ts'
import { PREPARE_MS, SANDBOX_DIRECTORY } from './adapters.ts'

/** Directory of test runs for the root and other files of the sandbox. */
export const SANDBOX_DIR = SANDBOX_DIRECTORY

/** The zygote adapter on the root that all tests share. */
export async function testZygote(options: Partial<ZygoteOptions> = {}): Promise<SandboxAdapter> {
  return zygoteAdapter({ directory: SANDBOX_DIR, log: openLog('silent', 'test'), ...options })
}

/** Opens a private zygote. The caller closes it. */
export async function openTestZygote(options: Partial<ZygoteOptions> = {}): Promise<Sandbox> {
  const adapter = await testZygote(options)
  return await adapter.open(AbortSignal.timeout(PREPARE_MS))
}

/** Reason why there is no sandbox on this machine; undefined if there is one. With CI=true a missing one is an error. */
export const SANDBOX_MISSING: string | undefined = await findProblem()

/** Only a run shows whether the sandbox works on this machine. This run also prepares the root for all later files. */
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
