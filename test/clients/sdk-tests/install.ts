/** Downloads an SDK and its tests once, into the cache directory. */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cp, mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { openEnvironment } from '../environments.ts'
import type { Suite } from './suites.ts'

const run = promisify(execFile)
const FETCH_MS = 300_000

/** Directory of the tests of a suite, ready to run. */
export interface Installed {
  /** Directory whose subdirectory `tests` contains the tests. */
  readonly directory: string
  /** Directory of the command `python`; undefined for an SDK from npm. */
  readonly bin: string | undefined
}

/**
 * Installs a suite, unless an earlier run has installed it.
 *
 * @param source A checkout of its repository. If undefined, then the tests are downloaded.
 * @throws Error with the message of git, pip or npm on failure
 */
export async function install(suite: Suite, cache: string, source: string | undefined): Promise<Installed> {
  const { name, language, needs } = suite
  const environment = await openEnvironment(
    { name: `sdk-${name}`, language, packages: [suite.package, ...needs] },
    cache,
  )
  const directory = join(environment.directory, 'sdk-tests')
  if (!existsSync(join(directory, 'complete'))) {
    await rm(directory, { recursive: true, force: true })
    await mkdir(directory, { recursive: true })
    const from = source ?? (await fetchTests(suite, cache, directory))
    await cp(join(from, 'tests'), join(directory, 'tests'), { recursive: true })
    if (language === 'js') await writeVitestConfig(directory)
    await writeFile(join(directory, 'complete'), '')
  }
  return { directory, bin: environment.bin }
}

/** Configures vitest to run tests that are written for jest, whose functions vitest also provides. */
async function writeVitestConfig(directory: string): Promise<void> {
  await writeFile(join(directory, 'setup.mjs'), "import { vi } from 'vitest'\nglobalThis.jest = vi\n")
  const config = { test: { globals: true, setupFiles: ['./setup.mjs'] } }
  await writeFile(join(directory, 'vitest.config.mjs'), `export default ${JSON.stringify(config)}\n`)
}

/** A directory with the tests: from the source package if included there, otherwise from the repository. */
async function fetchTests(suite: Suite, cache: string, directory: string): Promise<string> {
  const to = join(directory, 'source')
  await mkdir(to)
  if (suite.repository !== undefined) {
    const args = ['clone', '--quiet', '--depth=1', '--branch', suite.tag ?? '', suite.repository, to]
    await run('git', args, { timeout: FETCH_MS })
    return to
  }
  const wanted = suite.package.replace(/\[.*\]/, '')
  const [name = ''] = wanted.split('==')
  const download = ['-m', 'pip', 'download', '--quiet', '--no-deps', `--no-binary=${name}`, '--dest', to, wanted]
  await run(join(cache, 'uv', 'bin', 'python'), download, { timeout: FETCH_MS })
  const archive = (await readdir(to)).find((file) => file.endsWith('.tar.gz'))
  if (!archive) throw new Error(`There is no source package of ${wanted}.`)
  await run('tar', ['xzf', archive], { cwd: to, timeout: FETCH_MS })
  return join(to, archive.slice(0, -'.tar.gz'.length))
}
