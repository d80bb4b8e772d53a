import { join, resolve } from 'node:path'
import type { Config } from '#shared/config/config.ts'
import type { Log } from '#shared/log/log.ts'
import type { Corpus } from '#shared/search/local/files.ts'
import { openLocalCorpus } from '#shared/search/local/local.ts'
import type { SearchBackend } from '#shared/search/search.ts'
import { brave, exa, searxng, serper, tavily } from '#shared/search/web/backends.ts'
import { openMcpSearch } from '#shared/search/web/mcp/mcp.ts'
import { WebPages } from '#shared/search/web/pages.ts'
import { openWebSearch } from '#shared/search/web/web.ts'

const OWN: Corpus = { directory: resolve(import.meta.dirname, '../..'), paths: ['README.md', 'docs'] }

/**
 * Opens the search backends of the settings: each configured web search, and the folder RESEARCH_CORPUS. If none is configured, then one backend
 * searches Sluice's own documentation. The caller closes the backends.
 */
export function openSearchBackends(config: Config, log: Log): SearchBackend[] {
  const web = openWeb(config)
  if (web.length > 0 && !config.researchCorpus) return web
  const own = config.researchCorpus ? { directory: resolve(config.researchCorpus), paths: ['.'] } : OWN
  const onProblem = (problem: string) =>
    log.warn({ problem }, 'document of the research corpus could not be read; searches do not find it')
  return [openLocalCorpus({ corpus: own, directory: join(config.dataDir, 'corpus'), onProblem }), ...web]
}

function openWeb(config: Config): SearchBackend[] {
  const { searxngUrl, braveApiKey, tavilyApiKey, exaApiKey, serperApiKey, researchAllowPrivate } = config
  const { mcpSearchUrl, mcpSearchToken, mcpSearchTool } = config
  const pages = new WebPages({ policy: { allowPrivate: researchAllowPrivate } })
  return [
    ...(searxngUrl ? [openWebSearch(searxng(searxngUrl), pages)] : []),
    ...(braveApiKey ? [openWebSearch(brave(braveApiKey), pages)] : []),
    ...(tavilyApiKey ? [openWebSearch(tavily(tavilyApiKey), pages)] : []),
    ...(exaApiKey ? [openWebSearch(exa(exaApiKey), pages)] : []),
    ...(serperApiKey ? [openWebSearch(serper(serperApiKey), pages)] : []),
    ...(mcpSearchUrl
      ? [openMcpSearch({ url: mcpSearchUrl, token: mcpSearchToken, searchTool: mcpSearchTool }, pages)]
      : []),
  ]
}
