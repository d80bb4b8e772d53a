import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { orUnavailable } from '#shared/sandbox/sandbox.ts'
import { buildRoot } from './build.ts'

/*
 * The root file system of a sandbox: an interpreter and its libraries, and nothing else of this machine.
 *
 * The root is built once, without privileges, and does not refer to the files from which it was built. The zygote mounts the root
 * read-only, and the Docker adapter builds its image from it. Our own code is mounted at /opt/sandbox, so new code needs no new root.
 */

const SOURCES = ['requirements.txt', 'build_root.py', 'libraries.py'] as const

/** Our code that runs inside a sandbox. The sandbox sees it at /opt/sandbox. */
export const INSIDE_DIRECTORY = fileURLToPath(new URL('../python/', import.meta.url))

export const INSIDE_PYTHON = '/opt/python/bin/python3'

/** The complete environment of the interpreter. Variables of the service, which may contain keys, are not visible inside. */
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
  // Each run has one processor, so more threads would only compete for it.
  OPENBLAS_NUM_THREADS: '1',
  OMP_NUM_THREADS: '1',
  // By default, malloc reserves 64 MiB of address space per thread. Eight threads would reach the limit of the run.
  MALLOC_ARENA_MAX: '2',
}

export interface SandboxRoot {
  readonly directory: string
  /** Identifies the contents: roots with different contents have different tags. */
  readonly tag: string
}

/**
 * Ensures that there is a root below `parent`, and returns it. Downloads about 100 MB and stores 400 MB.
 *
 * Does nothing if the root exists. Concurrent calls, also of other processes, wait for one build. A build may be interrupted at any time.
 *
 * @throws ServiceError `sandbox_unavailable` with the missing part in one line (Python, pip, the network), or the abort reason
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
