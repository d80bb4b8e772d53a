import { ServiceError } from '#shared/lib/error.ts'

/*
 * The sandbox port: runs untrusted Python once and reports the end of the run.
 *
 * One conformance suite covers all three adapters (`docker`, `zygote`, `wasm`). If an adapter lacks a guarantee, then its probe fails, or its
 * `guarantees` describe the gap.
 */

export interface SandboxJob {
  readonly code: string
  /** Timeout of the run, from its first instruction and including the scan. Waiting for a slot does not count. */
  readonly timeoutMs: number
  /**
   * Whether to scan for forbidden imports and calls. If any are found, then the program does not run. Only tests of other barriers set this to false.
   */
  readonly scan: boolean
  readonly files?: readonly SandboxFile[]
}

export interface SandboxFile {
  readonly name: string
  readonly bytes: Buffer
}

export type SandboxEvent =
  | { readonly type: 'output'; readonly stream: 'stdout' | 'stderr'; readonly text: string }
  | { readonly type: 'plot'; readonly png: Uint8Array }

/** End of a run (docs/guides/code.md, The result). */
export type SandboxEnd =
  /** The interpreter exited: code 0 after a normal end, 1 after an uncaught exception, n after `sys.exit(n)`, 128 + n after signal n. */
  | { readonly type: 'exit'; readonly exitCode: number }
  /**
   * The scan found violations, so the program did not run. Example of a violation: `line 3: import of 'os' is not
   * allowed`.
   */
  | { readonly type: 'violations'; readonly violations: readonly string[] }
  | { readonly type: 'timeout' }
  /** A limit ended the run. The message describes the limit. */
  | { readonly type: 'killed'; readonly message: string }

/** An open sandbox. The caller must limit the number of concurrent runs. */
export interface Sandbox {
  readonly name: SandboxName
  /** Version of each library by its import name. The key `python` has the version of the interpreter. */
  readonly libraries: Readonly<Record<string, string>>
  /**
   * Runs a job and emits its output while it runs.
   *
   * Output beyond the limits is dropped, and the last line of the stream reports the truncation. If `signal` aborts, then every process of the run
   * ends within a second.
   *
   * @param onStart Called when the run begins, after waiting for a slot.
   * @throws ServiceError `sandbox_lost` if the sandbox broke before the run ended (a retry may help), or `sandbox_unavailable` if it cannot start.
   * The signal's reason
   */
  run(
    job: SandboxJob,
    onEvent: (event: SandboxEvent) => void,
    signal: AbortSignal,
    onStart?: () => void,
  ): Promise<SandboxEnd>
  stats(): SandboxStats
  /** Ends every run and process, and waits for their ends. May be called twice. */
  close(): Promise<void>
}

export interface SandboxStats {
  readonly idle: number
  readonly busy: number
}

export type SandboxName = 'docker' | 'zygote' | 'wasm'

export interface SandboxAdapter {
  readonly name: SandboxName
  /** Guarantees and their limits, as sentences for `sluice doctor` and the log. */
  readonly guarantees: readonly string[]
  /**
   * Downloads and builds the missing files. Has no effect if all files exist.
   *
   * @throws ServiceError `sandbox_unavailable` with the missing part and the remedy
   */
  prepare(onProgress: (fraction: number, message: string) => void, signal: AbortSignal): Promise<void>
  /**
   * Checks that all files exist, without downloading or building.
   *
   * @throws ServiceError `sandbox_unavailable` with the missing part
   */
  check(signal: AbortSignal): Promise<void>
  /**
   * Opens the sandbox and runs a line of Python in it.
   *
   * @throws ServiceError `sandbox_unavailable` with the reason and the remedy
   */
  open(signal: AbortSignal): Promise<Sandbox>
}

/**
 * Converts errors that occur while a sandbox is prepared.
 *
 * @param what Subject of the error message.
 * @throws ServiceError `sandbox_unavailable` with the missing part in one line, or the signal's reason
 */
export async function orUnavailable<T>(work: Promise<T>, what: string, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await work
  } catch (cause) {
    signal?.throwIfAborted()
    if (cause instanceof ServiceError && cause.code === 'sandbox_unavailable') throw cause
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new ServiceError('sandbox_unavailable', `${what} could not be prepared: ${reason}`, { cause })
  }
}

const PROBE_MS = 10_000
const OPEN_MS_MAX = 60_000

/**
 * Runs one line of Python in a sandbox to test it, because only a run shows whether runs work. If the run fails, then the sandbox is closed.
 *
 * @returns The sandbox
 * @throws ServiceError `sandbox_unavailable` with the end of the run, or the error of the run. The signal's reason
 */
export async function probed(sandbox: Sandbox, signal: AbortSignal): Promise<Sandbox> {
  try {
    const texts: string[] = []
    const job = { code: 'print(1)', timeoutMs: PROBE_MS, scan: true }
    const inTime = AbortSignal.any([signal, AbortSignal.timeout(OPEN_MS_MAX)])
    const end = await sandbox.run(job, (event) => void (event.type === 'output' && texts.push(event.text)), inTime)
    const text = texts.join('')
    if (end.type === 'exit' && end.exitCode === 0 && text === '1\n') return sandbox
    throw new ServiceError(
      'sandbox_unavailable',
      `The first test run in the sandbox ended with ${JSON.stringify(end)}: ${text}`,
    )
  } catch (error) {
    await sandbox.close()
    throw error
  }
}
