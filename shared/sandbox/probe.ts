import { ServiceError } from '#shared/lib/error.ts'
import type { Sandbox } from './sandbox.ts'

const PROBE_MS = 10_000
const OPEN_MS_MAX = 60_000

/**
 * Runs one line of Python in a sandbox, because only a run shows whether runs work. If the run fails, then the sandbox is closed.
 *
 * @returns The sandbox
 * @throws ServiceError `sandbox_unavailable` with the end of the run, or the error of the run; the signal's reason
 */
export async function probed(sandbox: Sandbox, signal: AbortSignal): Promise<Sandbox> {
  try {
    const texts: string[] = []
    const job = { code: 'print(1)', timeoutMs: PROBE_MS, scan: true }
    const inTime = AbortSignal.any([signal, AbortSignal.timeout(OPEN_MS_MAX)])
    const end = await sandbox.run(job, (event) => void (event.type === 'output' && texts.push(event.text)), inTime)
    const text = texts.join('')
    if (end.type === 'exit' && end.exitCode === 0 && text === '1\n') return sandbox
    throw new ServiceError('sandbox_unavailable', `The first run ended with ${JSON.stringify(end)}: ${text}`)
  } catch (error) {
    await sandbox.close()
    throw error
  }
}
