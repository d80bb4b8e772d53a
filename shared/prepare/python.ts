import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { z } from 'zod'
import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'

const execute = promisify(execFile)

const STEP_MS = 120_000
const VERSION_MIN = [3, 10] as const
const DESCRIBE = `
import importlib.util, json, sys
print(json.dumps({"executable": sys.executable, "tag": sys.implementation.cache_tag, "version": sys.version_info[:3],
  "has_pip": importlib.util.find_spec("pip") is not None}))`

const Described = z.object({
  executable: z.string(),
  tag: z.string(),
  version: z.array(z.number()),
  has_pip: z.boolean(),
})

export interface Python {
  readonly executable: string
  /** Tag of the interpreter for binary packages, such as `cpython-311`. A binary package works only with interpreters of its tag. */
  readonly tag: string
}

export interface PythonNeeds {
  /** Beginning of error messages, such as `Fetching the WebAssembly sandbox needs`. Default: `Speech and embeddings on this machine need`. */
  readonly purpose?: string
  readonly needsPip?: boolean
  readonly code?: ErrorCode
}

/**
 * Describes the Python interpreter that a command starts.
 *
 * @throws ServiceError with the requested code if there is no Python, if it is older than 3.10, or if it lacks pip. The message
 * states the problem and the remedy
 */
export async function describePython(
  command: string,
  signal: AbortSignal | undefined,
  {
    purpose = 'Speech and embeddings on this machine need',
    needsPip = false,
    code = 'model_loading',
  }: PythonNeeds = {},
): Promise<Python> {
  const refuse = (found: string, cause?: unknown) => {
    const message = `${purpose} Python ${VERSION_MIN.join('.')} or newer with pip: ${found}`
    return new ServiceError(code, message, { cause })
  }
  const text = await runPython(command, ['-I', '-c', DESCRIBE], signal).catch((cause) => {
    signal?.throwIfAborted()
    const isMissing = (cause as NodeJS.ErrnoException).code === 'ENOENT'
    const found = isMissing ? `${command} was not found` : `${command} could not be run`
    throw refuse(`install python3 and python3-pip (${found}).`, cause)
  })
  const described = readDescription(text)
  if (!described) throw refuse(`${command} is not a working Python interpreter. Install python3 and python3-pip.`)
  const { executable, tag, version, has_pip } = described
  const [major = 0, minor = 0] = version
  if (major < VERSION_MIN[0] || (major === VERSION_MIN[0] && minor < VERSION_MIN[1])) {
    const remedy = `Install Python ${VERSION_MIN.join('.')} or newer, and put its python3 first in PATH.`
    throw refuse(`${executable} has version ${version.join('.')}. ${remedy}`)
  }
  if (needsPip && !has_pip) throw refuse(`${executable} has no pip. Install python3-pip.`)
  return { executable, tag }
}

function readDescription(text: string): z.infer<typeof Described> | undefined {
  try {
    return Described.parse(JSON.parse(text))
  } catch {
    return undefined
  }
}

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
