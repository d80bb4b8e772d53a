import { ServiceError } from '#shared/lib/error.ts'

/*
 * The sandbox port: runs untrusted Python once and reports its end.
 *
 * One conformance suite covers all three adapters (`docker`, `zygote`, `wasm`). No adapter weakens a guarantee silently: if it lacks one,
 * then its probe fails or its `guarantees` say so.
 */

export interface SandboxJob {
  /** Python source, at most {@link CODE_POINTS_MAX} code points. */
  readonly code: string
  /** Timeout of the run from its first instruction, including the scan. Waiting for a slot does not count. */
  readonly timeoutMs: number
  /** Scan for forbidden imports and calls first, and run nothing if there are any. Only tests of the other barriers switch this off. */
  readonly scan: boolean
  /** Files in the program's initial directory; default: none. */
  readonly files?: readonly SandboxFile[]
}

export interface SandboxFile {
  /** A file name without a path: letters, digits and similar characters. */
  readonly name: string
  readonly bytes: Buffer
}

export type SandboxEvent =
  | { readonly type: 'output'; readonly stream: 'stdout' | 'stderr'; readonly text: string }
  | { readonly type: 'plot'; readonly png: Uint8Array }

/** The end of a run: the cases of docs/guides/code.md, The result. */
export type SandboxEnd =
  /** The interpreter exited: normally, by an uncaught exception or a syntax error (1), by `sys.exit(n)`, or by a signal (128 + n). */
  | { readonly type: 'exit'; readonly exitCode: number }
  /** The scan found violations and nothing ran. Each reads `line 3: import of 'os' is not allowed`. */
  | { readonly type: 'violations'; readonly violations: readonly string[] }
  | { readonly type: 'timeout' }
  /** A limit ended the run; `message` names the limit. */
  | { readonly type: 'killed'; readonly message: string }

/** An open sandbox. The number of concurrent runs is not limited here: the caller must bound it. */
export interface Sandbox {
  readonly name: SandboxName
  /** Version of each installed library by its import name; `python` for the interpreter. */
  readonly libraries: Readonly<Record<string, string>>
  /**
   * Runs a job and emits its output while it runs.
   *
   * Output beyond the limits is dropped, which the last line of the stream reports. If `signal` aborts, then every process of the run ends
   * within a second.
   *
   * @param onStart Called when the run begins, after waiting for a slot.
   * @throws ServiceError `sandbox_lost` if the sandbox broke before the run ended (a retry may help), or `sandbox_unavailable` if it cannot
   * start; the signal's reason
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

/** A kind of sandbox on this machine, before it is opened. */
export interface SandboxAdapter {
  readonly name: SandboxName
  /** Guarantees and their limits, as sentences for `sluice doctor` and the log. */
  readonly guarantees: readonly string[]
  /**
   * Downloads and builds missing files. Does nothing if all exist.
   *
   * @throws ServiceError `sandbox_unavailable` with the missing part and the remedy
   */
  prepare(onProgress: (fraction: number, message: string) => void, signal: AbortSignal): Promise<void>
  /** Checks whether all files exist, without downloading or building. @throws ServiceError `sandbox_unavailable` with the missing part */
  check(signal: AbortSignal): Promise<void>
  /** Opens the sandbox and runs a line of Python in it. @throws ServiceError `sandbox_unavailable` with the reason and the remedy */
  open(signal: AbortSignal): Promise<Sandbox>
}

/**
 * Converts errors of a sandbox's preparation.
 *
 * @param what Subject of the error message.
 * @throws ServiceError `sandbox_unavailable` with the missing part in one line; the signal's reason
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
