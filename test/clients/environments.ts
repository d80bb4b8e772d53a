/** Packages of a client: a virtual environment or an npm directory, created once in a cache directory. */
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type Client, PACKAGES_UNTIL } from './clients.ts'

const run = promisify(execFile)

const INSTALL_MS = 600_000
const UV = 'uv==0.13.9'

/** The packages of a client. */
export interface Environment {
  /** Directory of the environment. Programs below this directory can import the packages. */
  readonly directory: string
  /** Directory of `python` and the commands of the packages. Undefined for npm. */
  readonly bin: string | undefined
}

/** Default directory in which the packages of all clients are cached. */
export function cacheDirectory(): string {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'clients')
}

/**
 * Returns the environment of a client, and creates the environment if it does not exist.
 *
 * @param cache Directory of all environments
 * @throws Error with the message of the installer if packages cannot be installed
 */
export async function openEnvironment(client: Client, cache: string): Promise<Environment> {
  const { language, packages } = client
  const digest = createHash('sha256')
    .update(JSON.stringify([PACKAGES_UNTIL, packages]))
    .digest('hex')
    .slice(0, 12)
  const directory = join(cache, `${client.file?.split('.')[0] ?? client.name}-${language}-${digest}`)
  await installOnce(directory, packages, () =>
    language === 'js' ? installNpm(directory, packages) : installPython(directory, packages, cache),
  )
  return { directory, bin: language === 'js' ? undefined : join(directory, 'bin') }
}

/**
 * Installs a coding agent of 200 to 400 MB, unless it is cached. The install script of its package downloads the program for this platform.
 *
 * @param pin Package and version, such as `opencode-ai@1.18.33`
 * @param cache Directory of all environments
 * @throws Error with the message of the installer if the package cannot be installed
 */
export async function openAgent(pin: string, cache: string): Promise<{ directory: string; bin: string }> {
  const directory = join(cache, pin.replaceAll(/[^\w.]+/g, '-'))
  await installOnce(directory, [pin], () => installNpm(directory, [pin], ['--ignore-scripts=false']))
  return { directory, bin: join(directory, 'node_modules', '.bin') }
}

async function installOnce(
  directory: string,
  packages: readonly string[],
  install: () => Promise<void>,
): Promise<void> {
  const mark = join(directory, 'complete')
  if (existsSync(mark)) return
  await rm(directory, { recursive: true, force: true })
  await mkdir(directory, { recursive: true })
  await install()
  await writeFile(mark, packages.join('\n'))
}

async function installNpm(
  directory: string,
  packages: readonly string[],
  options = ['--ignore-scripts', `--before=${dayAfter(PACKAGES_UNTIL)}`],
): Promise<void> {
  await writeFile(join(directory, 'package.json'), '{ "type": "module" }\n')
  const quiet = ['--no-audit', '--no-fund', '--loglevel=error']
  await run('npm', ['install', ...quiet, ...options, ...packages], { cwd: directory, timeout: INSTALL_MS })
}

async function installPython(directory: string, packages: readonly string[], cache: string): Promise<void> {
  const uv = await openUv(cache)
  await run(uv, ['venv', '--quiet', '--allow-existing', directory], { timeout: INSTALL_MS })
  const where = ['--python', join(directory, 'bin', 'python'), '--exclude-newer', dayAfter(PACKAGES_UNTIL)]
  // The byte code is compiled during the installation. A test run writes no byte code, so each run would otherwise compile all imports.
  await run(uv, ['pip', 'install', '--quiet', '--compile-bytecode', ...where, ...packages], { timeout: INSTALL_MS })
}

/** Returns the path of uv, which installs packages much faster than pip, and can exclude newer packages. */
async function openUv(cache: string): Promise<string> {
  const directory = join(cache, 'uv')
  const uv = join(directory, 'bin', 'uv')
  if (!existsSync(uv)) {
    await run('python3', ['-m', 'venv', directory], { timeout: INSTALL_MS })
    const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', UV]
    await run(join(directory, 'bin', 'python'), install, { timeout: INSTALL_MS })
  }
  return uv
}

function dayAfter(day: string): string {
  return new Date(Date.parse(day) + 86_400_000).toISOString().slice(0, 10)
}
