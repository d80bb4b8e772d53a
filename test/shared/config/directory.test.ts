/** Tests of a directory that several processes try to create: exactly one of them creates it, atomically. */
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { getDirectoryState, placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import { prepareRoot } from '#shared/sandbox/root/root.ts'

async function openPlace() {
  const parent = await mkdtemp(join(tmpdir(), 'sluice-prepared-'))
  const place = placeFor(parent, 'thing', ['its contents'])
  return { parent, place, [Symbol.asyncDispose]: () => rm(parent, { recursive: true, force: true }) }
}

async function fill(built: string): Promise<{ version: string }> {
  await mkdir(built, { recursive: true })
  await writeFile(join(built, 'file'), 'text')
  return { version: '1' }
}

test('the preparation of a directory runs once for concurrent callers, and returns its result to all', async () => {
  await using made = await openPlace()
  let builds = 0
  const ask = () =>
    prepareDirectory(made.place, async (built) => {
      builds += 1
      return await fill(built)
    })
  expect(await Promise.all([ask(), ask(), ask()])).toEqual(Array(3).fill({ version: '1' }))
  expect(builds).toBe(1)
  expect(await readFile(join(made.place.directory, 'file'), 'utf8')).toBe('text')
  expect(await readdir(made.parent)).toHaveLength(1)
})

test('the preparation of a directory reports its failure, and runs again at the next call', async () => {
  await using made = await openPlace()
  const failing = prepareDirectory(made.place, async () => {
    throw new Error('no network')
  })
  await expect(failing).rejects.toThrow('no network')
  expect(await getDirectoryState(made.place)).toMatchObject({ state: 'failed', reason: 'no network' })
  expect(await prepareDirectory(made.place, fill)).toEqual({ version: '1' })
})

test('the preparation of a directory leaves no directory if the preparation is interrupted', async () => {
  await using made = await openPlace()
  const abort = new AbortController()
  const interrupted = prepareDirectory(
    made.place,
    async (built) => {
      await fill(built)
      abort.abort(new Error('stopped'))
      abort.signal.throwIfAborted()
      return { version: '1' }
    },
    { signal: abort.signal },
  )
  await expect(interrupted).rejects.toThrow('stopped')
  expect(await getDirectoryState(made.place)).toEqual({ state: 'absent' })
})

test('the path of a prepared directory depends on the required contents', () => {
  const [first, second] = ['a', 'b'].map((content) => placeFor('.', 'thing', [content]).directory)
  expect(first).not.toBe(second)
})

test('the preparation of the sandbox root fails with an error that names the package to install if Python is missing', async () => {
  await using made = await openPlace()
  await expect(prepareRoot(made.parent, { python: '/nowhere/python3' })).rejects.toMatchObject({
    code: 'sandbox_unavailable',
    message: expect.stringContaining('install python3'),
  })
})
