import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { ServiceError } from '#shared/error.ts'

const execute = promisify(execFile)

const STEP_MS = 120_000
const DESCRIBE =
  'import json, sys; print(json.dumps({"executable": sys.executable, "tag": sys.implementation.cache_tag, "new": sys.version_info >= (3, 10)}))'

/** An interpreter. */
export interface Python {
  /** Absolute path. */
  readonly executable: string
  /** Its version, such as cpython-311: what binary packages are built for. */
  readonly tag: string
}

/**
 * The interpreter behind a command.
 *
 * @throws ServiceError `model_loading` when there is none, or it is older than 3.10
 */
export async function describePython(command: string, signal: AbortSignal | undefined): Promise<Python> {
  const text = await runPython(command, ['-I', '-c', DESCRIBE], signal).catch((cause) => {
    signal?.throwIfAborted()
    throw missing(cause)
  })
  const { new: isNew, ...python } = JSON.parse(text) as Python & { new: boolean }
  if (!isNew) throw missing(new Error(`${python.executable} is ${python.tag}`))
  return python
}

/** Runs a program, a short one unless `timeoutMs` says otherwise, and gives what it prints. */
export async function runPython(
  command: string,
  args: readonly string[],
  signal: AbortSignal | undefined,
  timeoutMs = STEP_MS,
): Promise<string> {
  const options = { timeout: timeoutMs, killSignal: 'SIGKILL', ...(signal ? { signal } : {}) } as const
  const { stdout } = await execute(command, args, options)
  return stdout
}

function missing(cause: unknown): ServiceError {
  const message =
    'Speech and embeddings on this machine need Python 3.10 or newer with pip: install python3 and python3-pip.'
  return new ServiceError('model_loading', message, { cause })
}
