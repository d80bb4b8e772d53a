import { execFileSync } from 'node:child_process'
import { mkdir, mkdtemp, rm, symlink, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type FoundFile, listFiles, readFound } from '#shared/search/local/files.ts'
import { type LocalCorpus, openLocalCorpus } from '#shared/search/local/local.ts'
import { SNAPSHOT_CHARS_MAX } from '#shared/search/search.ts'
import { until } from '../../support/stack.ts'

const ALL = { allow: [], deny: [] }
const signal = new AbortController().signal
const READING = { domains: ALL, project: 'prj_1', signal }
const options = { limit: 5, domains: ALL, signal }

let root: string
let corpus: LocalCorpus
const problems: string[] = []

const put = async (path: string, content: string | Uint8Array) => {
  await mkdir(join(root, 'docs', path, '..'), { recursive: true })
  await writeFile(join(root, 'docs', path), content)
}
const open = (lookMs = 3_600_000) => {
  corpus = openLocalCorpus({
    corpus: { directory: join(root, 'docs'), paths: ['.'] },
    directory: join(root, 'data'),
    onProblem: (problem) => problems.push(problem),
    pollIntervalMs: lookMs,
  })
}
const urls = async (text: string) => (await corpus.search(text, options)).map(({ url }) => url)

beforeEach(async () => {
  problems.length = 0
  root = await mkdtemp(join(tmpdir(), 'sluice-corpus-'))
  await put('leases.md', '# Leases\n\nA worker renews its lease three times. A lease that is over frees the job.')
  await put('sub/two words.txt', 'Webhooks are signed with a secret.\n\nThey are tried again for a day.')
  await put(
    'page.html',
    '<title>Pages</title><script>alert(1)</script><article><h1>Robots</h1><p>Robots are obeyed.</p></article>',
  )
})
afterEach(async () => {
  await corpus.close()
  await rm(root, { recursive: true })
})

describe('the local corpus', () => {
  test('finds documents by any form of a word and by file name, best match first', async () => {
    open()
    const [hit] = await corpus.search('renewing leases', options)
    expect(hit).toMatchObject({
      url: 'leases.md',
      title: 'Leases',
      snippet: expect.stringContaining('renews its lease'),
    })
    expect(await urls('how are webhooks signed?')).toEqual(['sub/two%20words.txt'])
    expect(await urls('robot')).toEqual(['page.html'])
    expect(await urls('nothing has this zyzzyva')).toEqual([])
  })

  test('returns a found document as blocks of text without scripts', async () => {
    open()
    const [hit] = await corpus.search('robots obeyed', options)
    const snapshot = await corpus.read(hit as never, READING)
    expect(snapshot.text).toContain('Robots are obeyed.')
    expect(snapshot.text).not.toContain('alert')
    expect(snapshot.blocks.map(({ start, end }) => snapshot.text.slice(start, end)).join('\n\n')).toBe(snapshot.text)
  })

  test('treats operators and quotes of the full-text query language as words', async () => {
    open()
    for (const text of ['"lease" OR NOT', 'lease*', 'NEAR(lease job)', 'title:lease', '- "', '(((', 'lease AND AND'])
      expect(Array.isArray(await corpus.search(text, options))).toBe(true)
  })

  test('detects added, changed and deleted files, and still returns the old text of an earlier hit', async () => {
    open()
    const [before] = await corpus.search('lease', options)
    await put('leases.md', '# Leases\n\nTokens replaced them everywhere.')
    await put('new.md', '# New\n\nThe aardvark arrives.')
    await rm(join(root, 'docs/page.html'))
    await corpus.refresh()
    expect(await urls('lease worker')).toEqual(['leases.md'])
    expect((await corpus.search('tokens', options))[0]?.sha256).not.toBe(before?.sha256)
    expect(await urls('aardvark')).toEqual(['new.md'])
    expect(await urls('robots')).toEqual([])
    expect((await corpus.read(before as never, READING)).text).toContain('renews its lease three times')
  })

  test('detects a new file by change notifications or by polling', async () => {
    open(50)
    expect(await urls('aardvark')).toEqual([])
    await put('sub/new.md', 'The aardvark arrives.')
    await until(async () => (await urls('aardvark')).length === 1, { withinMs: 20_000 })
  })

  test('reopens its index after a restart, and rebuilds a corrupt index', async () => {
    open()
    await corpus.refresh()
    await corpus.close()
    open()
    expect(await urls('lease')).toEqual(['leases.md'])
    await corpus.close()
    await writeFile(join(root, 'data/corpus.db'), 'this is no database')
    open()
    expect(await urls('lease')).toEqual(['leases.md'])
  })

  test('skips unreadable files, and reports each with the reason once', async () => {
    await put('binary.txt', Uint8Array.from([1, 0, 2, 0]))
    await put('broken.pdf', 'this is no PDF')
    await put('broken.docx', 'this is no archive')
    await put('program.exe', 'lease lease lease')
    await put('.hidden.md', 'lease lease lease')
    await writeFile(join(root, 'secret.md'), 'lease lease lease')
    await symlink(join(root, 'secret.md'), join(root, 'docs/link.md'))
    open()
    expect(await urls('lease')).toEqual(['leases.md'])
    expect(corpus.problems().map((problem) => problem.split(':')[0])).toEqual([
      'binary.txt',
      'broken.docx',
      'broken.pdf',
    ])
    expect(problems).toHaveLength(3)
    const sameTime = new Date(1_700_000_000_000)
    await utimes(join(root, 'docs/binary.txt'), sameTime, sameTime)
    await corpus.refresh()
    expect(problems).toHaveLength(4)
  })

  test('refuses a file that was replaced by a link, a pipe or a directory after it was listed', async () => {
    open()
    const directory = join(root, 'docs')
    const [file] = await listFiles({ directory, paths: ['leases.md'] })
    const { absolute } = file as FoundFile
    expect((await readFound(file as FoundFile, signal)).toString()).toContain('# Leases')
    await writeFile(join(root, 'secret.md'), 'secret')
    const swaps: [() => unknown, RegExp][] = [
      [() => symlink(join(root, 'secret.md'), absolute), /link/],
      [() => execFileSync('mkfifo', [absolute]), /no longer a regular file/],
      [() => mkdir(absolute), /no longer a regular file/],
    ]
    for (const [swap, problem] of swaps) {
      await rm(absolute, { recursive: true })
      await swap()
      await expect(readFound(file as FoundFile, signal)).rejects.toThrow(problem)
    }
  })

  test('splits a document above the maximum source length into parts', async () => {
    const paragraph = `${'The zebra walks on and on. '.repeat(100)}\n\n`
    await put('long.md', `# Long\n\n${paragraph.repeat(40)}\n\nThe okapi ends it.`)
    open()
    const [hit] = await corpus.search('okapi', options)
    expect(hit).toMatchObject({ url: 'long.md#part-3', title: 'Long (part 3)' })
    expect((await corpus.read(hit as never, READING)).text.length).toBeLessThanOrEqual(SNAPSHOT_CHARS_MAX)
  })

  test('fails with upstream_error if its directory is unreadable', async () => {
    await rm(join(root, 'docs'), { recursive: true })
    open()
    await expect(corpus.search('lease', options)).rejects.toMatchObject({ code: 'upstream_error' })
  })

  test('returns no hits and refuses reads if the request does not allow the host of the corpus', async () => {
    open()
    const domains = { allow: ['example.com'], deny: [] }
    expect(corpus.hasAllowed?.(domains)).toBe(false)
    expect(corpus.hasAllowed?.(ALL)).toBe(true)
    expect(await corpus.search('lease', { ...options, domains })).toEqual([])
    await expect(
      corpus.read({ url: 'leases.md', title: '', snippet: '' }, { ...READING, domains }),
    ).rejects.toMatchObject({
      code: 'permission_denied',
    })
  })

  test('refuses to read any path outside its directory with not_found', async () => {
    open()
    for (const url of ['../secret.md', '/etc/passwd', 'file:///etc/passwd', 'leases.md/../../secret.md'])
      await expect(corpus.read({ url, title: '', snippet: '' }, READING)).rejects.toMatchObject({
        code: 'not_found',
      })
  })

  test('searches the indexed part while indexing continues, and reports the progress', async () => {
    for (let at = 0; at < 300; at++) await put(`many/${at}.txt`, `Number ${at}: ${'herons nest in trees. '.repeat(50)}`)
    open()
    const partial = () => corpus.search('herons', { ...options, isPartial: true })
    await expect(partial()).rejects.toMatchObject({ code: 'overloaded', retryAfterMs: 5_000 })
    const progress = await until(async () => {
      const found = await corpus.indexed?.(1, signal)
      return found && found.indexed > 1 ? found : undefined
    })
    expect(progress.documents).toBe(303)
    expect(progress.indexed).toBeLessThan(303)
    const [hit] = await until(async () => {
      const hits = await partial()
      return hits.length > 0 ? hits : undefined
    })
    expect((await corpus.read(hit as never, READING)).text).toContain('herons nest')
    expect(await corpus.indexed?.(60_000, signal)).toBeUndefined()
    expect(await urls('herons')).toHaveLength(5)
  })

  test('returns the number of passages that contain each word', async () => {
    open()
    expect(await corpus.countTerms(['leases', 'webhook', 'zyzzyva'], new AbortController().signal)).toEqual({
      passages: 3,
      holding: [1, 1, 0],
    })
  })
})
