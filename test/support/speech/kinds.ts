/** Converts one recording to every audio format (container and codec) that the service accepts, for tests of the decoder. */
import { execFile } from 'node:child_process'
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { Environment } from '#shared/local-server/environment.ts'

const MAKE = fileURLToPath(new URL('./make_fixtures.py', import.meta.url))

/**
 * Returns the converted files by name.
 *
 * @param source The recording, as a WAV file
 */
export async function makeKinds(environment: Environment, source: string): Promise<Record<string, Buffer>> {
  const directory = await mkdtemp(join(tmpdir(), 'kinds-'))
  try {
    const site = join(environment.directory, 'site')
    const options = { timeout: 120_000 }
    await promisify(execFile)(environment.python.executable, ['-I', '-B', MAKE, site, source, directory], options)
    const names = await readdir(directory)
    const files = names.map(async (name) => [name, await readFile(join(directory, name))] as const)
    return Object.fromEntries(await Promise.all(files))
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}
