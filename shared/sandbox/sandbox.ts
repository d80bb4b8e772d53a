import { ServiceError } from '#shared/error.ts'

/*
 * The sandbox port: runs Python that nobody trusts, once, and says how it ended. Three adapters (`docker`, `zygote`,
 * `wasm`) and one conformance suite over all of them. None weakens a guarantee silently: what an adapter cannot give, its
 * probe refuses or its `guarantees` say.
 */

/** One run. */
export interface SandboxJob {
  /** Python source, at most {@link CODE_POINTS_MAX} code points. */
  readonly code: string
  /** Wall time of the run from its first instruction, scan included; waiting for room does not count. */
  readonly timeoutMs: number
  /** Look for forbidden imports and calls first, and run nothing when there are any. Off in tests of the walls behind it. */
  readonly scan: boolean
  /** In the directory in which the program begins; default: none. */
  readonly files?: readonly SandboxFile[]
}

/** A file that a program finds. */
export interface SandboxFile {
  /** Letters, digits and the like: no path. */
  readonly name: string
  readonly bytes: Buffer
}

/** What a run gives while it goes on, in order. */
export type SandboxEvent =
  | { readonly type: 'output'; readonly stream: 'stdout' | 'stderr'; readonly text: string }
  | { readonly type: 'plot'; readonly png: Uint8Array }

/** How a run ended: the cases of docs/code.md, The result. */
export type SandboxEnd =
  /** The interpreter ended by itself, also by an uncaught exception or a syntax error (1), `sys.exit(n)`, or a signal (128 + n). */
  | { readonly type: 'exit'; readonly exitCode: number }
  /** The scan found something: nothing ran. Each reads `line 3: import of 'os' is not allowed`. */
  | { readonly type: 'violations'; readonly violations: readonly string[] }
  | { readonly type: 'timeout' }
  /** A limit ended it from outside; `message` names the limit. */
  | { readonly type: 'killed'; readonly message: string }

/** An open sandbox. It runs as many jobs at once as it is asked to: the caller bounds that. */
export interface Sandbox {
  readonly name: SandboxName
  /** Version of each installed library, by the name it is imported by; `python` for the interpreter. */
  readonly libraries: Readonly<Record<string, string>>
  /**
   * Runs a job and gives its output while it runs.
   *
   * Output past the limits is dropped, and the stream's last line says so. Aborting `signal` ends every process of the run
   * within a second.
   *
   * @param onStart Called when waiting for room is over and the run begins.
   * @throws ServiceError `sandbox_lost` when the sandbox broke before the run ended (another try may help), or
   *   `sandbox_unavailable` when it cannot start; the signal's reason
   */
  run(
    job: SandboxJob,
    onEvent: (event: SandboxEvent) => void,
    signal: AbortSignal,
    onStart?: () => void,
  ): Promise<SandboxEnd>
  stats(): SandboxStats
  /** Ends every run and every process; waits for that. A second call does nothing more. */
  close(): Promise<void>
}

/** For health and metrics. */
export interface SandboxStats {
  /** Interpreters that wait for a run. */
  readonly idle: number
  /** Runs under way. */
  readonly busy: number
}

export type SandboxName = 'docker' | 'zygote' | 'wasm'

/** One way to sandbox on this machine, before it is opened. */
export interface SandboxAdapter {
  readonly name: SandboxName
  /** What it promises and what it does not: sentences for `sluice doctor` and the log. */
  readonly guarantees: readonly string[]
  /** Fetches and builds what it needs and this machine lacks. Does nothing when it is there. @throws ServiceError `sandbox_unavailable` saying what is missing and how to mend it */
  prepare(onProgress: (fraction: number, message: string) => void, signal: AbortSignal): Promise<void>
  /** Looks whether all is prepared; fetches and builds nothing. @throws ServiceError `sandbox_unavailable` with what is missing */
  check(signal: AbortSignal): Promise<void>
  /** Opens it and really runs a line of Python. @throws ServiceError `sandbox_unavailable` with the reason and the fix */
  open(signal: AbortSignal): Promise<Sandbox>
}

/**
 * What the preparation of a sandbox gives.
 *
 * @param what Begins the sentence that callers read when it fails.
 * @throws ServiceError `sandbox_unavailable` saying in one line what is missing; the signal's reason
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
