import { expect, it } from 'vitest'
import { ERRNO, GuestExit } from '#shared/sandbox/wasm/inside/wasi/abi.ts'
import { CREATE, EXCLUSIVE, TRUNCATE, wasiGuest } from '../../../support/sandbox/wasi-guest.ts'

const NEW = { how: CREATE, write: true }

it('the WASI file system reads a written file from the start, the middle and the end', () => {
  const guest = wasiGuest()
  const fd = guest.open('tmp/a', NEW)
  guest.write(fd, 'hello world')
  guest.call('fd_seek', fd, -5n, 2, 8_192)
  expect(guest.read(fd)).toBe('world')
  guest.call('fd_seek', fd, 0n, 0, 8_192)
  expect(guest.read(fd, 5)).toBe('hello')
  expect(guest.size('tmp/a')).toBe(11)
})

it('the WASI file system resolves no path above its root', () => {
  const guest = wasiGuest()
  for (const path of [
    '../../lib/stored.txt',
    'tmp/../../../lib/./stored.txt',
    '/lib//stored.txt',
    '..//lib/stored.txt',
  ]) {
    expect(guest.read(guest.open(path))).toBe('stored')
  }
  for (const path of ['etc/passwd', '../etc/passwd', '/proc/self/environ', 'C:\\Windows\\win.ini', '\0']) {
    expect(guest.open(path)).toBe(-ERRNO.noent)
  }
  expect(guest.open('lib/stored.txt/..')).toBe(-ERRNO.notdir)
})

it('the WASI file system refuses to change, replace or remove prepared files', () => {
  const guest = wasiGuest()
  expect(guest.open('lib/stored.txt', { write: true })).toBe(-ERRNO.rofs)
  expect(guest.open('lib/new', NEW)).toBe(-ERRNO.rofs)
  expect(guest.open('new', NEW)).toBe(-ERRNO.rofs)
  expect(guest.onPath('path_unlink_file', 'lib/stored.txt')).toBe(ERRNO.rofs)
  expect(guest.onPath('path_remove_directory', 'lib')).toBe(ERRNO.rofs)
  expect(guest.onPath('path_create_directory', 'lib/new')).toBe(ERRNO.rofs)
  guest.open('tmp/a', NEW)
  expect(guest.rename('lib/stored.txt', 'tmp/b')).toBe(ERRNO.rofs)
  expect(guest.rename('tmp/a', 'lib/stored.txt')).toBe(ERRNO.rofs)
  const fd = guest.open('lib/stored.txt', { how: TRUNCATE })
  expect(guest.write(fd, 'x')).toBe(ERRNO.badf)
  expect(guest.call('fd_filestat_set_size', fd, 0n)).toBe(ERRNO.badf)
  expect(guest.read(fd)).toBe('stored')
})

it('the WASI file system has one quota for all files, and frees a removed file when it is closed', () => {
  const guest = wasiGuest({ bytes: 1_000 })
  const fd = guest.open('tmp/a', NEW)
  expect(guest.write(fd, 'x'.repeat(900))).toBe(0)
  const other = guest.open('tmp/b', NEW)
  expect(guest.write(other, 'x'.repeat(101))).toBe(ERRNO.nospc)
  guest.onPath('path_unlink_file', 'tmp/a')
  expect(guest.write(other, 'x'.repeat(101))).toBe(ERRNO.nospc)
  guest.call('fd_close', fd)
  expect(guest.write(other, 'x'.repeat(1_000))).toBe(0)
})

it('the WASI file system limits the size of a file, even if the file is extended without a write', () => {
  const guest = wasiGuest({ bytes: 10_000, fileBytes: 2_048 })
  const fd = guest.open('tmp/a', NEW)
  expect(guest.write(fd, 'x'.repeat(2_049))).toBe(ERRNO.fbig)
  expect(guest.call('fd_filestat_set_size', fd, 2_049n)).toBe(ERRNO.fbig)
  expect(guest.call('fd_filestat_set_size', fd, 2n ** 63n - 1n)).toBe(ERRNO.inval)
  guest.call('fd_seek', fd, 2_047n, 0, 8_192)
  expect(guest.write(fd, 'x')).toBe(0)
  expect(guest.write(fd, 'x')).toBe(ERRNO.fbig)
  expect(guest.size('tmp/a')).toBe(2_048)
})

it('the WASI file system returns zeros for truncated content if the file grows again', () => {
  const guest = wasiGuest()
  const fd = guest.open('tmp/a', NEW)
  guest.write(fd, 'secret')
  guest.call('fd_filestat_set_size', fd, 1n)
  guest.call('fd_filestat_set_size', fd, 3n)
  guest.call('fd_seek', fd, 0n, 0, 8_192)
  expect(guest.read(fd)).toBe('s\0\0')
})

it('the WASI file system limits the number of files and directories', () => {
  const guest = wasiGuest({ nodes: 4 })
  // The limit is four files and directories. The directory /tmp itself counts as one of them.
  expect(guest.onPath('path_create_directory', 'tmp/d')).toBe(0)
  expect(guest.open('tmp/d/a', NEW)).toBeGreaterThan(0)
  expect(guest.open('tmp/d/b', NEW)).toBeGreaterThan(0)
  expect(guest.open('tmp/d/c', NEW)).toBe(-ERRNO.nospc)
  expect(guest.onPath('path_create_directory', 'tmp/e')).toBe(ERRNO.nospc)
  expect(guest.open(`tmp/${'x'.repeat(256)}`, NEW)).toBe(-ERRNO.nametoolong)
})

it('the WASI file system limits the number of open descriptors, and reuses closed ones', () => {
  const guest = wasiGuest({ openMax: 6 })
  const first = guest.open('lib/stored.txt')
  expect([first, guest.open('lib/stored.txt'), guest.open('lib/stored.txt')]).toEqual([4, 5, -ERRNO.mfile])
  expect(guest.call('fd_close', first)).toBe(0)
  expect(guest.call('fd_close', first)).toBe(ERRNO.badf)
  expect(guest.open('lib')).toBe(first)
  expect(guest.call('fd_tell', 99, 8_192)).toBe(ERRNO.badf)
  expect(guest.call('fd_tell', -1, 8_192)).toBe(ERRNO.badf)
})

it('the WASI file system respects the flags of open: create, exclusive, append and truncate', () => {
  const guest = wasiGuest()
  expect(guest.open('tmp/a')).toBe(-ERRNO.noent)
  guest.write(guest.open('tmp/a', NEW), 'one')
  expect(guest.open('tmp/a', { how: CREATE | EXCLUSIVE, write: true })).toBe(-ERRNO.exist)
  guest.write(guest.open('tmp/a', { write: true, append: true }), ' two')
  expect(guest.read(guest.open('tmp/a'))).toBe('one two')
  guest.open('tmp/a', { how: TRUNCATE, write: true })
  expect(guest.size('tmp/a')).toBe(0)
  expect(guest.open('tmp', { write: true })).toBe(-ERRNO.isdir)
})

it('the WASI file system replaces files by rename, and refuses to move a directory into itself', () => {
  const guest = wasiGuest()
  guest.write(guest.open('tmp/a', NEW), 'a')
  guest.write(guest.open('tmp/b', NEW), 'bb')
  guest.onPath('path_create_directory', 'tmp/d')
  guest.onPath('path_create_directory', 'tmp/d/e')
  expect(guest.rename('tmp/a', 'tmp/b')).toBe(0)
  expect(guest.size('tmp/b')).toBe(1)
  expect(guest.open('tmp/a')).toBe(-ERRNO.noent)
  expect(guest.rename('tmp/b', 'tmp/d')).toBe(ERRNO.isdir)
  expect(guest.rename('tmp/d', 'tmp/b')).toBe(ERRNO.notdir)
  expect(guest.rename('tmp/d', 'tmp/d/e/f')).toBe(ERRNO.inval)
  expect(guest.rename('tmp/d', 'tmp/g')).toBe(0)
  expect(guest.list('tmp/g', 1_024)).toEqual(['.', '..', 'e'])
  expect(guest.onPath('path_remove_directory', 'tmp/g')).toBe(ERRNO.notempty)
})

it('the WASI file system lists each name of a directory once, even in small chunks', () => {
  const guest = wasiGuest({ nodes: 40 })
  const names = Array.from({ length: 30 }, (_, i) => `file-${i}`)
  for (const name of names) guest.call('fd_close', guest.open(`tmp/${name}`, NEW))
  expect(guest.list('tmp', 100)).toEqual(['.', '..', ...names])
})

it('the WASI file system supports neither links nor sockets', () => {
  const guest = wasiGuest()
  expect(guest.call('path_symlink', 0, 1, 3, 0, 1)).toBe(ERRNO.notsup)
  expect(guest.call('path_link', 3, 0, 0, 1, 3, 0, 1)).toBe(ERRNO.notsup)
  expect(guest.onPath('path_readlink', 'lib/stored.txt', 0, 0, 0)).toBe(ERRNO.inval)
  for (const name of ['sock_accept', 'sock_recv', 'sock_send', 'sock_shutdown']) {
    expect(guest.call(name, 1, 0, 0, 0, 0, 0)).toBe(ERRNO.notsock)
  }
})

it('the WASI calls return an error for addresses outside the memory of the guest', () => {
  const guest = wasiGuest()
  const fd = guest.open('lib/stored.txt')
  for (const address of [1 << 20, (1 << 20) - 4, -1, -(2 ** 31)]) {
    expect(guest.call('fd_filestat_get', fd, address)).toBe(ERRNO.fault)
    expect(guest.call('random_get', address, 64)).toBe(ERRNO.fault)
    expect(guest.call('fd_read', fd, address, 1, 8_192)).toBe(ERRNO.fault)
    expect(guest.call('clock_time_get', 1, 0n, address)).toBe(ERRNO.fault)
  }
  expect(guest.call('random_get', 0, -1)).toBe(ERRNO.inval)
  expect(guest.call('fd_read', fd, 0, -1, 8_192)).toBe(ERRNO.inval)
  expect(guest.onPath('path_unlink_file', 'x'.repeat(5_000))).toBe(ERRNO.nametoolong)
})

it('a WASI poll blocks for the requested time, and the clocks advance during that time', () => {
  const guest = wasiGuest()
  const clock = (id: number) => {
    guest.call('clock_time_get', id, 0n, 8_192)
    return guest.memory.getU64(8_192)
  }
  const [realtime, monotonic] = [clock(0), clock(1)]
  expect(guest.wait(30_000_000n)).toBe(1)
  expect(Number(clock(1) - monotonic)).toBeGreaterThanOrEqual(29_000_000)
  expect(Number(clock(0) - realtime)).toBeGreaterThanOrEqual(29_000_000)
  expect(Math.abs(Number(clock(0) / 1_000_000n) - Date.now())).toBeLessThan(60_000)
})

it('a WASI guest has only its own environment variables, and different random bytes at each call', () => {
  const guest = wasiGuest()
  guest.call('environ_sizes_get', 100, 104)
  expect([guest.memory.getU32(100), guest.memory.getU32(104)]).toEqual([1, 'HOME=/tmp\0'.length])
  guest.call('environ_get', 200, 300)
  expect(Buffer.from(guest.memory.bytes(300, 10)).toString()).toBe('HOME=/tmp\0')
  guest.call('random_get', 400, 32)
  guest.call('random_get', 432, 32)
  expect(Buffer.from(guest.memory.bytes(400, 32))).not.toEqual(Buffer.from(guest.memory.bytes(432, 32)))
})

it('a WASI guest writes to the output stream, and ends with its exit status', () => {
  const guest = wasiGuest()
  guest.write(1, 'printed')
  expect(guest.written).toEqual(['printed'])
  expect(guest.call('fd_seek', 1, 0n, 0, 8_192)).toBe(ERRNO.spipe)
  expect(() => guest.call('proc_exit', 7)).toThrow(new GuestExit(7))
})
