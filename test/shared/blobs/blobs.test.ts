import { spawnSync } from 'node:child_process'
import { mkdtemp, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { openDiskBlobs } from '#shared/blobs/disk.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Every adapter, opened on an empty directory. */
const ADAPTERS: { name: string; open: (directory: string) => Promise<Blobs> }[] = [
  { name: 'disk', open: (directory) => openDiskBlobs(join(directory, 'made', 'when missing')) },
]

let directory: string
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-blobs-'))
})
afterEach(() => rm(directory, { recursive: true, force: true }))

describe.each(ADAPTERS)('the blob store on $name', ({ open }) => {
  it('returns the stored bytes unchanged, also to a second instance on the same directory', async () => {
    const [one, other] = [await open(directory), await open(directory)]
    for (const value of [Buffer.alloc(0), Buffer.from([0, 255, 10, 13]), Buffer.alloc(5_000_000, 'x')]) {
      await one.put('key', value)
      expect((await other.get('key')).equals(value)).toBe(true)
    }
  })

  it('stores a stream under one key and returns its complete content as a stream', async () => {
    const blobs = await open(directory)
    const pieces = Array.from({ length: 40 }, (_, i) => Buffer.alloc(50_000, String(i)))
    await blobs.put('streamed', Readable.from(pieces))
    expect((await buffer(await blobs.open('streamed'))).equals(Buffer.concat(pieces))).toBe(true)
  })

  it('creates its directory with mode 0700 and each blob with mode 0600', async () => {
    const blobs = await open(directory)
    await blobs.put('key', Buffer.from('what a user sent'))
    const place = join(directory, 'made', 'when missing')
    const modes = await Promise.all([place, join(place, 'key')].map(async (path) => (await stat(path)).mode & 0o777))
    expect(modes).toEqual([0o700, 0o600])
  })

  it('stores no blob if its source stream fails', async () => {
    const blobs = await open(directory)
    async function* failing() {
      yield Buffer.from('half')
      throw new Error('cut')
    }
    await expect(blobs.put('half', failing())).rejects.toThrow('cut')
    await expect(blobs.get('half')).rejects.toMatchObject({ code: 'not_found' })
    expect(await blobs.sweep(-1_000)).toBe(0)
  })

  it('returns the size of a blob in bytes', async () => {
    const blobs = await open(directory)
    await blobs.put('key', Buffer.from('日本'))
    expect(await blobs.size('key')).toBe(6)
  })

  it('copies a blob so that the copy remains after the original is deleted', async () => {
    const blobs = await open(directory)
    await blobs.put('from', Buffer.from('value'))
    await blobs.copy('from', 'to')
    await blobs.delete('from')
    expect(String(await blobs.get('to'))).toBe('value')
    await expect(blobs.copy('from', 'again')).rejects.toMatchObject({ code: 'not_found' })
    await expect(blobs.open('from')).rejects.toMatchObject({ code: 'not_found' })
  })

  it('replaces the content of a blob when its key is stored again', async () => {
    const blobs = await open(directory)
    await blobs.put('key', Buffer.from('a long first value'))
    await blobs.put('key', Buffer.from('second'))
    expect(String(await blobs.get('key'))).toBe('second')
  })

  it('returns either the old or the new content, never a mix, while a blob is replaced', async () => {
    const blobs = await open(directory)
    const values = ['a', 'b'].map((letter) => Buffer.alloc(2_000_000, letter))
    await blobs.put('key', values[0] as Buffer)
    const puts = Array.from({ length: 10 }, (_, i) => blobs.put('key', values[i % 2] as Buffer))
    for (let i = 0; i < 20; i++) {
      const seen = await blobs.get('key')
      expect(values.some((value) => value.equals(seen))).toBe(true)
    }
    await Promise.all(puts)
  })

  it('returns not_found for a key that was never stored or was deleted', async () => {
    const blobs = await open(directory)
    await blobs.put('gone', Buffer.from('x'))
    await blobs.delete('gone')
    for (const key of ['never', 'gone']) {
      await expect(blobs.get(key)).rejects.toMatchObject({ code: 'not_found', constructor: ServiceError })
      await expect(blobs.size(key)).rejects.toMatchObject({ code: 'not_found', constructor: ServiceError })
    }
  })

  it('accepts the deletion of a missing blob without an error', async () => {
    const blobs = await open(directory)
    await blobs.delete('never')
    await blobs.put('key', Buffer.from('x'))
    await Promise.all([blobs.delete('key'), blobs.delete('key')])
  })

  it.each(['', '../key', 'a/b', 'a.b', '.', 'a\0b', 'x'.repeat(201), 'ключ'])(
    'refuses the malformed key %j in put, get and delete, and writes no file',
    async (key) => {
      const blobs = await open(directory)
      await expect(blobs.put(key, Buffer.from('x'))).rejects.toThrow('malformed blob key')
      await expect(blobs.get(key)).rejects.toThrow('malformed blob key')
      await expect(blobs.delete(key)).rejects.toThrow('malformed blob key')
      expect(await blobs.sweep(-1_000)).toBe(0)
    },
  )

  it('deletes the blobs that are older than the given age, and returns their number', async () => {
    const blobs = await open(directory)
    await Promise.all(['a', 'b', 'c'].map((key) => blobs.put(key, Buffer.from('x'))))
    expect(await blobs.sweep(60_000)).toBe(0)
    expect(await blobs.sweep(-1_000)).toBe(3)
    await expect(blobs.get('a')).rejects.toMatchObject({ code: 'not_found' })
  })
})

describe('the blob store on disk', () => {
  it('leaves no partial file behind if a blob cannot be written', async () => {
    const blobs = await openDiskBlobs(directory)
    // A directory in the way makes the rename fail, as a full disk would fail an earlier step.
    await writeFile(join(directory, 'other'), '')
    const inTheWay = join(directory, 'key')
    await openDiskBlobs(inTheWay)
    await writeFile(join(inTheWay, 'file'), '')
    await expect(blobs.put('key', Buffer.from('x'))).rejects.toThrow()
    expect((await readdir(directory)).sort()).toEqual(['key', 'other'])
  })

  it('reports an unreadable blob with the error of the file system, not as not_found', async () => {
    const blobs = await openDiskBlobs(directory)
    await openDiskBlobs(join(directory, 'key'))
    const failure = await blobs.get('key').catch((error: unknown) => error)
    expect(failure).not.toBeInstanceOf(ServiceError)
    expect(failure).toMatchObject({ code: 'EISDIR' })
  })

  it('deletes the partial files of crashed writers in its sweep', async () => {
    const blobs = await openDiskBlobs(directory)
    const half = join(directory, '.partial-crashed')
    await writeFile(half, 'hal')
    const yesterday = Date.now() / 1_000 - 86_400
    await utimes(half, yesterday, yesterday)
    await blobs.put('new', Buffer.from('x'))
    expect(await blobs.sweep(3_600_000)).toBe(1)
    expect(await readdir(directory)).toEqual(['new'])
  })
})

const canMount = spawnSync('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'none', '/mnt']).status === 0

it.skipIf(!canMount)(
  'a blob write to a full disk fails as overloaded with a retry delay, and leaves no partial file',
  () => {
    const script = `
    const { openDiskBlobs } = await import(process.argv[1])
    const { readdirSync } = await import('node:fs')
    const blobs = await openDiskBlobs(process.argv[2])
    async function* large() { for (let i = 0; i < 64; i++) yield Buffer.alloc(64 * 1024) }
    await blobs.put('small', Buffer.from('x'))
    const says = async (work) => await work.catch(({ code, isUndone, retryAfterMs }) => [code, isUndone, retryAfterMs > 0])
    const said = [await says(blobs.put('large', large())), await says(blobs.put('large', Buffer.alloc(4 << 20)))]
    console.log(JSON.stringify([...said, readdirSync(process.argv[2])]))`
    const mount = `mount -t tmpfs -o size=1m none '${directory}' && exec "$@"`
    const run = ['sh', '-c', mount, 'sh', process.execPath, '--input-type=module', '-e', script]
    const { stdout } = spawnSync('unshare', ['-rm', ...run, resolve('shared/blobs/disk.ts'), directory])
    const full = ['overloaded', true, true]
    expect(JSON.parse(String(stdout))).toEqual([full, full, ['small']])
  },
)
