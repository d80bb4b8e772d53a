import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { ROLES } from '#services/services.ts'

const ROOT = join(import.meta.dirname, '..')
const RUN_MS = 60_000
/** Program that imports the given modules of the project with the compile cache, as `services/main.js` does, and prints which modules were loaded. */
const LOAD = `
  const { enableCompileCache, Module } = await import('node:module')
  const [cache, ...files] = process.argv.slice(1)
  enableCompileCache(cache)
  for (const file of files) await import(file)
  process.stdout.write([...process.moduleLoadList, ...Object.keys(Module._cache)].join('\\n'))
`
const SHARED = ['shared/ports.ts', 'services/services.ts']

let cache: string

beforeAll(async () => {
  cache = await mkdtemp(join(tmpdir(), 'sluice-loaded-'))
})

afterAll(() => rm(cache, { recursive: true, force: true }))

/** Returns the modules that are loaded when files of the project are imported: built-in modules of Node.js, and paths of CommonJS modules. */
async function loaded(...files: string[]): Promise<string> {
  const paths = [...SHARED, ...files].map((file) => join(ROOT, file))
  const args = ['--input-type=module', '-e', LOAD, cache, ...paths]
  const env = { PATH: process.env.PATH }
  return (await promisify(execFile)(process.execPath, args, { env, timeout: RUN_MS, maxBuffer: 2 ** 24 })).stdout
}

it("a start with a compile cache loads neither the TypeScript stripper nor Node's built-in fetch", {
  timeout: 2 * RUN_MS,
}, async () => {
  const all = [
    ...ROLES.map((role) => `services/${role}/${role}.ts`),
    'shared/ports/engines.ts',
    'shared/ports/search.ts',
  ]
  expect(await loaded(...all)).toContain('internal/deps/amaro')
  const again = await loaded(...all)
  expect(again).toContain('NativeModule http')
  expect(again).not.toContain('internal/deps/amaro')
  expect(again).not.toContain('internal/deps/undici')
})

it('a role loads no HTTP server of other roles, and no upstream client that it does not use', {
  timeout: 2 * RUN_MS,
}, async () => {
  const ingress = await loaded('services/ingress/ingress.ts')
  expect(ingress).toContain('node_modules/express/')
  expect(ingress).not.toContain('node_modules/undici/')
  const worker = await loaded('services/inference/inference.ts', 'shared/ports/engines.ts')
  expect(worker).toContain('node_modules/undici/')
  expect(worker).not.toContain('node_modules/express/')
})
