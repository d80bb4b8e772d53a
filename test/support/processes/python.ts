import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { access, mkdir, rm, stat, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'

const run = promisify(execFile)

const PYTHON_MIN = [3, 10] as const

/** Timeout of the preparation of one environment. A lock that is older than this belongs to a process that died. */
const PREPARE_MS = 240_000

/**
 * Calls {@link pythonEnv}. If the environment is unavailable, then the reason is printed and the result is undefined, for
 * `describe.skipIf(!bin)`.
 *
 * With CI=true the reason is thrown as an error, because a skip would hide a failure.
 */
export async function findPythonEnv(name: string, requirements: readonly string[]): Promise<string | undefined> {
  try {
    return await pythonEnv(name, requirements)
  } catch (error) {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`skipped, no Python environment '${name}': ${(error as Error).message.slice(0, 500)}\n`)
    return undefined
  }
}

/**
 * A Python environment with pinned packages, created once and cached in the home directory. The first creation takes seconds to minutes and
 * needs the package index; concurrent test files share it.
 *
 * @param name Purpose, which becomes part of the directory name. Other requirements get another directory.
 * @param requirements Exact pins, such as `llm-katan==0.22.0`.
 * @returns The directory that contains `python` and the commands of the packages.
 * @throws Error if there is no Python with venv, or if the packages cannot be installed
 */
export async function pythonEnv(name: string, requirements: readonly string[]): Promise<string> {
  const digest = createHash('sha256')
    .update([...requirements].sort().join('\n'))
    .digest('hex')
    .slice(0, 12)
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
  const place = join(cache, 'sluice', 'python', `${name}-${digest}`)
  const mark = join(place, 'complete')
  while (!(await exists(mark))) {
    if (await takeLock(`${place}.lock`))
      await prepare(place, mark, requirements).finally(() => rm(`${place}.lock`, { recursive: true }))
    else await delay(200)
  }
  return join(place, 'bin')
}

async function prepare(place: string, mark: string, requirements: readonly string[]): Promise<void> {
  if (await exists(mark)) return
  await requirePython()
  await rm(place, { recursive: true, force: true })
  await run('python3', ['-m', 'venv', place], { timeout: PREPARE_MS })
  const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...requirements]
  await run(join(place, 'bin', 'python'), install, { timeout: PREPARE_MS })
  await writeFile(mark, requirements.join('\n'))
}

async function requirePython(): Promise<void> {
  const wanted = `python3 >= ${PYTHON_MIN.join('.')} with the venv module is needed`
  const script = 'import sys, venv, ensurepip; print(*sys.version_info[:2])'
  const { stdout } = await run('python3', ['-c', script], { timeout: 20_000 }).catch((cause: unknown) => {
    throw new Error(wanted, { cause })
  })
  const [major = 0, minor = 0] = stdout.trim().split(' ').map(Number)
  const isNew = major > PYTHON_MIN[0] || (major === PYTHON_MIN[0] && minor >= PYTHON_MIN[1])
  if (!isNew) throw new Error(`${wanted}, found ${major}.${minor}`)
}

/** Takes a lock. The lock is a directory, because only one process can create a directory. */
async function takeLock(path: string): Promise<boolean> {
  await mkdir(join(path, '..'), { recursive: true })
  try {
    await mkdir(path)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
  const madeMs = await stat(path).then(
    ({ mtimeMs }) => mtimeMs,
    () => Date.now(),
  )
  if (Date.now() - madeMs > PREPARE_MS * 2) await rm(path, { recursive: true, force: true })
  return false
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}
