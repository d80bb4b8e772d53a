import { randomUUID } from 'node:crypto'
import { mkdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { installPackages } from '#shared/prepare/pip.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython, type Python, runPython } from '#shared/prepare/python.ts'

const NEEDS = { purpose: 'The sandbox needs', needsPip: true, code: 'sandbox_unavailable' } as const
const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url))
const BUILD = fileURLToPath(new URL('./build_root.py', import.meta.url))
/** Total size of the libraries' wheels on Linux x86-64. Used only for the reported progress. */
const PACKAGES_BYTES = 96_000_000
const DOWNLOAD_SHARE = 0.6
/** Timeout of the build; compiling takes a minute of CPU time. */
const BUILD_MS_MAX = 20 * 60_000

export type RootBuildOptions = PrepareOptions & { readonly onProgress: OnProgress }

/**
 * Fills `built/root`.
 *
 * @returns The interpreter's version tag
 * @throws ServiceError `sandbox_unavailable` or `model_loading` with the missing part, or the abort reason
 */
export async function buildRoot(built: string, workDir: string, options: RootBuildOptions): Promise<{ tag: string }> {
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

/** Each pip uses its own directory, because a pip of a killed service may still be writing to another. */
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
