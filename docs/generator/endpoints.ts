import { SERVICE } from '#services/ingress/openapi/jobs.ts'
import { type DescribedRoute, describedRoutes, templateOf } from '#services/ingress/openapi/openapi.ts'
import { type Operation, TAGS } from '#services/ingress/openapi/operation.ts'
import { CHAPTERS } from '#services/ingress/pages/guide.ts'
import { table } from './table.ts'

interface Endpoint {
  readonly method: string
  readonly path: string
  readonly scope: string
  readonly operation: Operation
}

/** One section per tag of the API reference, with one row per endpoint. */
export async function endpointTables(): Promise<string> {
  const endpoints = [...(await describedRoutes()).map(endpointOf), ...Object.entries(SERVICE).map(serviceEndpointOf)]
  const sections = Object.entries(TAGS).map(([tag, description]) => {
    const rows = endpoints.filter(({ operation }) => operation.tag === tag).map(rowOf)
    if (rows.length === 0) return []
    return [`## ${tag}`, '', description, '', table(['Method', 'Path', 'Scope', 'Summary'], rows), '']
  })
  return sections.flat().join('\n')
}

function endpointOf({ route: { method, path, scope = 'calls' }, operation }: DescribedRoute): Endpoint {
  return { method, path: templateOf(path), scope, operation }
}

function serviceEndpointOf([name, operation]: [string, Operation]): Endpoint {
  const [method = '', path = ''] = name.split(' ')
  return { method, path, scope: 'none', operation }
}

function rowOf({ method, path: endpoint, scope, operation: { summary, guide } }: Endpoint): string[] {
  const [page, anchor] = guide?.split('#') ?? []
  const folder = CHAPTERS.find(({ name }) => name === page)?.folder
  const path = folder === 'reference' ? `${page}.md` : `../${folder}/${page}.md`
  const linked = page ? `[${summary}](${path}${anchor ? `#${anchor}` : ''})` : summary
  return [`\`${method}\``, `\`${endpoint}\``, scope === 'none' ? 'none' : `\`${scope}\``, linked]
}
