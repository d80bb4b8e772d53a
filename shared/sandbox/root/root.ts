import { randomUUID } from 'node:crypto'
import { mkdir, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import { installPackages } from '#shared/prepare/pip.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython, type Python, runPython } from '#shared/prepare/python.ts'
import { orUnavailable } from '#shared/sandbox/sandbox.ts'

/*
 * The root file system of a sandbox: an interpreter and its libraries, and nothing else of this machine.
 *
 * The root is built once, without privileges, and does not refer to the files from which it was built. The zygote adapter mounts the root
 * read-only, and the Docker adapter builds its image from the root. Sluice's own code is not part of the root, so new code needs no new
 * root. The zygote adapter mounts the code at /opt/sandbox, and the Docker adapter adds the code to the image.
 */

const SOURCES = ['requirements.txt', 'build_root.py', 'libraries.py'] as const

/** Directory of Sluice's code that runs inside a sandbox, where it is visible at /opt/sandbox. */
export const INSIDE_DIRECTORY = fileURLToPath(new URL('../python/', import.meta.url))

export const INSIDE_PYTHON = '/opt/python/bin/python3'

/** The complete environment of the interpreter. Variables of the service, which may contain keys, are not visible to a program. */
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
  // By default, malloc reserves 64 MiB of address space per thread, so eight threads would reach the memory limit of
  // the run.
  MALLOC_ARENA_MAX: '2',
}

interface SandboxRoot {
  readonly directory: string
  /** Hash of the contents of the root. Roots with different contents have different tags. */
  readonly tag: string
}

/**
 * Ensures that a root exists below `parent`, and returns it. Downloads about 100 MB and stores 400 MB.
 *
 * Has no effect if the root exists. Concurrent calls, also of other processes, wait for one build. A build may be interrupted at any time.
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

const NEEDS = { purpose: 'The sandbox needs', needsPip: true, code: 'sandbox_unavailable' } as const
const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url))
const BUILD = fileURLToPath(new URL('./build_root.py', import.meta.url))
/** Total bytes of the libraries' wheels on Linux x86-64. Used only for the reported progress. */
const PACKAGES_BYTES = 96_000_000
const DOWNLOAD_SHARE = 0.6
/** Timeout of the build in ms. Compiling takes a minute of CPU time. */
const BUILD_MS_MAX = 20 * 60_000

type RootBuildOptions = PrepareOptions & { readonly onProgress: OnProgress }

/**
 * Builds the root file system in `built/root`.
 *
 * @returns The interpreter's version tag
 * @throws ServiceError `sandbox_unavailable` or `model_loading` with the missing part, or the abort reason
 */
async function buildRoot(built: string, workDir: string, options: RootBuildOptions): Promise<{ tag: string }> {
  const { onProgress, signal } = options
  const python = await describePython(options.python ?? 'python3', signal, NEEDS)
  await rm(built, { recursive: true, force: true })
  const root = join(built, 'root')
  await mkdir(join(root, 'opt'), { recursive: true })
  await install(python, join(root, 'opt', 'site'), workDir, options)
  onProgress(DOWNLOAD_SHARE, "compiling the sandbox's Python")
  await runPython(python.executable, ['-E', '-s', '-B', BUILD, root], signal, BUILD_MS_MAX)
  return { tag: python.tag }
}

/** Installs packages. Each run of pip gets its own directory, because pip may still be writing after the service that started it was killed. */
async function install(python: Python, target: string, workDir: string, options: RootBuildOptions): Promise<void> {
  const { onProgress, signal } = options
  const message = `installing the sandbox's libraries (${PACKAGES_BYTES / 1e6} MB)`
  const onBytes = (bytes: number) => onProgress(DOWNLOAD_SHARE * Math.min(1, bytes / PACKAGES_BYTES), message)
  const own = join(workDir, `pip-${randomUUID()}`)
  await mkdir(own)
  try {
    await installPackages(python.executable, REQUIREMENTS, join(own, 'site'), own, { signal, onBytes })
    await rename(join(own, 'site'), target)
  } finally {
    await rm(own, { recursive: true, force: true })
  }
}
