import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '..')
const RUN_MS = 60_000
/** Loads all that a process with every role does, as `services/main.js` does. */
const LOAD = `
  const { enableCompileCache } = await import('node:module')
  enableCompileCache(process.argv[1])
  await import(${JSON.stringify(join(ROOT, 'services/services.ts'))})
  process.stdout.write(process.moduleLoadList.join('\\n'))
`

let cache: string

beforeAll(async () => {
  cache = await mkdtemp(join(tmpdir(), 'sluice-loaded-'))
})

afterAll(() => rm(cache, { recursive: true, force: true }))

async function loaded(): Promise<string> {
  const args = ['--input-type=module', '-e', LOAD, cache]
  const env = { PATH: process.env.PATH }
  return (await promisify(execFile)(process.execPath, args, { env, timeout: RUN_MS, maxBuffer: 2 ** 24 })).stdout
}

it('loads neither the stripper of types, once all is compiled, nor the HTTP client inside of Node', {
  timeout: 2 * RUN_MS,
}, async () => {
  expect(await loaded()).toContain('internal/deps/amaro')
  const again = await loaded()
  expect(again).toContain('NativeModule http')
  expect(again).not.toContain('internal/deps/amaro')
  expect(again).not.toContain('internal/deps/undici')
})
