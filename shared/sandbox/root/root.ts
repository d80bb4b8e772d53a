import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { orUnavailable } from '#shared/sandbox/sandbox.ts'
import { buildRoot } from './build.ts'

/*
 * The root file system of a sandbox: an interpreter, its libraries and nothing else of this machine. It is prepared
 * once, without privileges, and needs nothing of where it came from. The zygote binds it read-only; the docker adapter
 * makes its image from it. Our own code is not in it: it is bound to /opt/sandbox, so that a new version of it needs no
 * new root.
 */

/** The files that say what is in a root. */
const SOURCES = ['requirements.txt', 'build_root.py', 'libraries.py'] as const

/** Our code that runs inside, to be seen at /opt/sandbox. */
export const INSIDE_DIRECTORY = fileURLToPath(new URL('../python/', import.meta.url))

/** The interpreter's path inside. */
export const INSIDE_PYTHON = '/opt/python/bin/python3'

/** Variables of the interpreter, all of them: none of the service's, which may be a key, is seen inside. */
export const INSIDE_VARIABLES: Readonly<Record<string, string>> = {
  PATH: '/opt/python/bin',
  HOME: '/tmp',
  LANG: 'C.UTF-8',
  LOCPATH: '/opt/locale',
  TZ: 'UTC',
  LD_LIBRARY_PATH: '/opt/lib',
  PYTHONHOME: '/opt/python',
  PYTHONPATH: '/opt/site',
  PYTHONUTF8: '1',
  PYTHONDONTWRITEBYTECODE: '1',
  // One processor a run: more threads would only take each other's time.
  OPENBLAS_NUM_THREADS: '1',
  OMP_NUM_THREADS: '1',
  // Each thread would reserve 64 MiB of addresses otherwise, and eight threads reach the limit.
  MALLOC_ARENA_MAX: '2',
}

/** A prepared root. */
export interface SandboxRoot {
  /** The file system itself. */
  readonly directory: string
  /** Names its contents: another root has another tag. */
  readonly tag: string
}

/**
 * Makes sure that there is a root below `parent`, and gives it. About 100 MB are downloaded, 400 MB kept.
 *
 * Does nothing when it is there. Several calls, also of several processes, share the work. Safe to interrupt.
 *
 * @throws ServiceError `sandbox_unavailable` saying in one line what is missing (Python, pip, the network), or the abort
 *   reason
 */
export async function prepareRoot(parent: string, options: PrepareOptions = {}): Promise<SandboxRoot> {
  const contents = await Promise.all(SOURCES.map((name) => readFile(new URL(`./${name}`, import.meta.url))))
  const place = placeFor(parent, 'root', contents)
  const build = (built: string, workDir: string, onProgress: OnProgress) =>
    buildRoot(built, workDir, { ...options, onProgress })
  const work = prepareDirectory(place, build, options)
  const { tag } = await orUnavailable(work, "The sandbox's Python", options.signal)
  return { directory: join(place.directory, 'root'), tag: `${place.tag}-${tag}` }
}
