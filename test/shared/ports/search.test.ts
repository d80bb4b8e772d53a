import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { ConfigError, parseConfig } from '#shared/config/config.ts'
import { openLog } from '#shared/log/log.ts'
import { openSearchBackends } from '#shared/ports/search.ts'
import type { SearchBackend } from '#shared/search/search.ts'

const options = { limit: 3, domains: { allow: [], deny: [] }, signal: new AbortController().signal }
let directory: string
let opened: SearchBackend[] = []
const open = (settings: Record<string, string>) => {
  opened = openSearchBackends(parseConfig({ DATA_DIR: directory, ...settings }), openLog('silent', 'test'))
  return opened.map(({ name }) => name)
}
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-backends-'))
})
afterEach(async () => {
  await Promise.all(opened.map((backend) => backend.close()))
  await rm(directory, { recursive: true })
})

test('the search opens the local documentation if no backend is configured', async () => {
  expect(open({})).toEqual(['local'])
  const hits = await opened[0]?.search('How are webhooks signed?', options)
  expect(hits?.map(({ url }) => url)).toContain('docs/guides/webhooks.md')
})

test('the search opens only the configured backends', async () => {
  const keys = { BRAVE_API_KEY: 'b', TAVILY_API_KEY: 't', EXA_API_KEY: 'e', SERPER_API_KEY: 's' }
  const urls = { SEARXNG_URL: 'http://127.0.0.1:1', MCP_SEARCH_URL: 'http://127.0.0.1:1/mcp' }
  expect(open({ ...urls, ...keys })).toEqual(['searxng', 'brave', 'tavily', 'exa', 'serper', 'mcp'])
})

test('the search opens a configured folder in addition to other backends', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-folder-'))
  await writeFile(join(folder, 'a.md'), 'The aardvark arrives.')
  expect(open({ RESEARCH_CORPUS: folder, BRAVE_API_KEY: 'b' })).toEqual(['local', 'brave'])
  expect((await opened[0]?.search('aardvark', options))?.map(({ url }) => url)).toEqual(['a.md'])
  await rm(folder, { recursive: true })
})

test('the search fails to open with ConfigError if a backend URL is invalid', () => {
  expect(() => open({ SEARXNG_URL: 'searx' })).toThrow(ConfigError)
})
