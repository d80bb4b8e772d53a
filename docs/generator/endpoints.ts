import { SERVICE } from '#services/ingress/openapi/jobs.ts'
import { OPERATIONS, templateOf } from '#services/ingress/openapi/openapi.ts'
import { type Operation, TAGS } from '#services/ingress/openapi/operation.ts'
import { CHAPTERS } from '#services/ingress/pages/guide.ts'
import { ROUTES } from '#services/ingress/routes.ts'
import { table } from './table.ts'

interface Endpoint {
  readonly method: string
  readonly path: string
  readonly scope: string
  readonly operation: Operation
}

/** One section per tag of the API reference, with one row per endpoint. */
export function endpointTables(): string {
  const endpoints = [...ROUTES.map(endpointOf), ...Object.entries(SERVICE).map(serviceEndpointOf)]
  const sections = Object.entries(TAGS).map(([tag, description]) => {
    const rows = endpoints.filter(({ operation }) => operation.tag === tag).map(rowOf)
    return [`## ${tag}`, '', description, '', table(['Method', 'Path', 'Scope', 'Summary'], rows), '']
  })
  return sections.flat().join('\n')
}

function endpointOf({ method, path, scope = 'calls' }: (typeof ROUTES)[number]): Endpoint {
  const operation = OPERATIONS[`${method} ${path}`]
  if (!operation) throw new Error(`services/ingress/openapi has no operation for ${method} ${path}.`)
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
