import { spawnSync } from 'node:child_process'
import { mkdtemp, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { CreateMultipartUploadCommand, S3Client } from '@aws-sdk/client-s3'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { openDiskBlobs } from '#shared/blobs/disk.ts'
import { openS3Blobs } from '#shared/blobs/s3.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { startS3, type TestS3 } from '../../support/processes/s3.ts'
import { until } from '../../support/stack.ts'

const s3 = await startS3()
afterAll(async () => await s3?.[Symbol.asyncDispose]())
const openS3 = (directory: string, own: TestS3) =>
  openS3Blobs({ ...own.location, prefix: `${basename(directory).toLowerCase()}/` })

/** The blob adapters under test. Each is opened on an empty directory, or on an empty prefix of a bucket. */
const ADAPTERS: { name: string; open: (directory: string) => Promise<Blobs> }[] = [
  { name: 'disk', open: (directory) => openDiskBlobs(join(directory, 'made', 'when missing')) },
  ...(s3 ? [{ name: 'S3', open: (directory: string) => openS3(directory, s3) }] : []),
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

  it('streams the bytes of a range', async () => {
    const blobs = await open(directory)
    await blobs.put('key', Buffer.from('0123456789'))
    const read = async (start: number, end: number) => String(await buffer(await blobs.open('key', { start, end })))
    expect([await read(0, 3), await read(2, 10), await read(4, 4), await read(8, 99)]).toEqual([
      '012',
      '23456789',
      '',
      '89',
    ])
  })

  it('has one id for all instances that use one directory or bucket, and no sweep deletes the id', async () => {
    const [one, other] = [await open(directory), await open(directory)]
    const id = await one.identity()
    await one.sweep(60_000)
    expect([await other.identity(), await (await open(directory)).identity()]).toEqual([id, id])
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
  it('creates its directory with mode 0700 and each blob with mode 0600', async () => {
    const blobs = await openDiskBlobs(join(directory, 'made', 'when missing'))
    await blobs.put('key', Buffer.from('what a user sent'))
    const place = join(directory, 'made', 'when missing')
    const modes = await Promise.all([place, join(place, 'key')].map(async (path) => (await stat(path)).mode & 0o777))
    expect(modes).toEqual([0o700, 0o600])
  })

  it('leaves no partial file behind if a blob cannot be written', async () => {
    const blobs = await openDiskBlobs(directory)
    // Creates a directory at the path of the blob, so that the rename of the blob's temporary file fails.
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
  'a blob write to a full disk fails with overloaded and a Retry-After, and leaves no partial file',
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

describe.skipIf(!s3)('the blob store on S3', () => {
  const server = () => s3 as TestS3
  const failWith = (...fault: Parameters<TestS3['fail']>) => server().fail(...fault)
  afterEach(() => failWith('none'))
  const large = () => Readable.from(Array.from({ length: 20 }, (_, i) => Buffer.alloc(1_000_000, String(i))))

  it('sends a large stream in parts, and stores nothing if the stream fails', async () => {
    const blobs = await openS3(directory, server())
    await blobs.put('large', large())
    expect(await blobs.size('large')).toBe(20_000_000)
    expect((await buffer(await blobs.open('large'))).equals(await buffer(large()))).toBe(true)
    async function* failing() {
      for await (const piece of large()) yield piece as Buffer
      throw new Error('cut')
    }
    await expect(blobs.put('half', failing())).rejects.toThrow('cut')
    await expect(blobs.size('half')).rejects.toMatchObject({ code: 'not_found' })
    expect(await blobs.sweep(-1_000)).toBe(1)
  })

  it.each(['down', 'slow-down'] as const)('completes requests after a short outage (%s)', async (fault) => {
    const blobs = await openS3(directory, server())
    failWith(fault, 2)
    await blobs.put('key', Buffer.from('value'))
    failWith(fault, 2)
    expect(String(await blobs.get('key'))).toBe('value')
  })

  it('continues an interrupted read at the first missing byte', async () => {
    const blobs = await openS3(directory, server())
    const value = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 251))
    await blobs.put('key', value)
    failWith('truncate', 2)
    expect((await blobs.get('key')).equals(value)).toBe(true)
  })

  it('completes an upload whose last response was lost', async () => {
    const blobs = await openS3(directory, server())
    failWith('unanswered', 1, /^POST .*uploadId=/)
    await blobs.put('large', large())
    expect(await blobs.size('large')).toBe(20_000_000)
    failWith('down', undefined, /^POST .*uploads/)
    const source = large()
    await expect(blobs.put('other', source)).rejects.toMatchObject({ code: 'overloaded' })
    expect(source.destroyed).toBe(true)
  })

  it('frees the connections of streams that are destroyed unread', async () => {
    const blobs = await openS3(directory, server())
    await blobs.put('key', Buffer.alloc(2_000_000, 'x'))
    const countSockets = () => process.getActiveResourcesInfo().filter((name) => name === 'TCPSocketWrap').length
    const before = countSockets()
    for (let opened = 0; opened < 60; opened++) (await blobs.open('key')).destroy()
    expect(countSockets() - before, 'sockets that remain open').toBeLessThan(30)
  })

  it('stores and reads small values while many streams occupy connections', async () => {
    const blobs = await openS3(directory, server())
    await blobs.put('key', Buffer.from('streamed'))
    const isRead = /^GET .*\/key\b/
    const countReads = () => server().requests.filter((request) => isRead.test(request)).length
    const before = countReads()
    failWith('held', undefined, isRead)
    const opening = Array.from({ length: 100 }, () => blobs.open('key'))
    await until(() => countReads() === before + opening.length)
    await blobs.put('other', Buffer.from('value'))
    expect(String(await blobs.get('other'))).toBe('value')
    failWith('none')
    for (const stream of await Promise.all(opening)) stream.destroy()
  })

  it('fails a read if the object is replaced before the read ends', async () => {
    const blobs = await openS3(directory, server())
    await blobs.put('key', Buffer.alloc(300_000, 'a'))
    failWith('truncate', 1)
    const stream = await blobs.open('key')
    await blobs.put('key', Buffer.alloc(300_000, 'b'))
    await expect(buffer(stream)).rejects.toMatchObject({ code: 'overloaded' })
  })

  it('fails with overloaded and a Retry-After of 5 s during an outage', async () => {
    const blobs = await openS3(directory, server())
    failWith('down')
    await expect(blobs.get('key')).rejects.toMatchObject({
      code: 'overloaded',
      isInfrastructure: true,
      retryAfterMs: 5_000,
    })
  })

  it('names the setting to correct if the bucket is missing', async () => {
    const error = await openS3Blobs({ ...server().location, bucket: 'no-such-bucket' }).catch(
      (thrown: unknown) => thrown,
    )
    expect(error).toMatchObject({
      code: 'overloaded',
      cause: { isPermanent: true, remediation: expect.stringContaining('BLOB_URL') },
    })
  })

  it('aborts multipart uploads of crashed processes in its sweep', async () => {
    const blobs = await openS3(directory, server())
    const client = new S3Client({ endpoint: server().endpoint, region: 'us-east-1', forcePathStyle: true })
    const { bucket: Bucket } = server().location
    const Key = `${basename(directory).toLowerCase()}/crashed`
    await client.send(new CreateMultipartUploadCommand({ Bucket, Key }))
    expect([await blobs.sweep(-1_000), await blobs.sweep(-1_000)]).toEqual([1, 0])
  })
})
