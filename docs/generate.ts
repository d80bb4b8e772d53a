import { readFileSync, writeFileSync } from 'node:fs'
import { OPERATIONS, templateOf } from '#services/ingress/openapi/openapi.ts'
import { type Operation, TAGS } from '#services/ingress/openapi/operation.ts'
import { SERVICE } from '#services/ingress/openapi/operations/service.ts'
import { ROUTES } from '#services/ingress/routes.ts'

/*
 * Generates the tables of reference pages from the code: `npm run docs` rewrites them, and test/docs/endpoints.test.ts fails if a page
 * is out of date. A page marks its generated part with two comments, between which nothing is edited by hand:
 *
 *   <!-- generated: npm run docs -->
 *   <!-- end of the generated part -->
 */

const START = '<!-- generated: npm run docs -->'
const END = '<!-- end of the generated part -->'

interface Row {
  readonly method: string
  readonly path: string
  readonly scope: string
  readonly operation: Operation
}

/** Generated parts by page. */
export const GENERATED: Readonly<Record<string, () => string>> = { 'docs/endpoints.md': endpointTables }

/** The text of a page with a current generated part. @throws Error if the page lacks the marks */
export function regenerate(page: string): string {
  const text = readFileSync(page, 'utf8')
  const [before, rest = ''] = text.split(`${START}\n`)
  const [, after] = rest.split(END)
  if (after === undefined) throw new Error(`${page} lacks the line ${START} or ${END}.`)
  return `${before}${START}\n\n${GENERATED[page]?.() ?? ''}\n${END}${after}`
}

/** One section per tag of the API reference, with one row per endpoint. */
function endpointTables(): string {
  const rows = [...ROUTES.map(rowOf), ...Object.entries(SERVICE).map(serviceRowOf)]
  const sections = Object.entries(TAGS).map(([tag, description]) => {
    const lines = rows.filter(({ operation }) => operation.tag === tag).map(lineOf)
    return [
      `## ${tag}`,
      '',
      description,
      '',
      '| Method | Path | Scope | Summary |',
      '| --- | --- | --- | --- |',
      ...lines,
      '',
    ]
  })
  return sections.flat().join('\n')
}

function rowOf({ method, path, scope = 'calls' }: (typeof ROUTES)[number]): Row {
  const operation = OPERATIONS[`${method} ${path}`]
  if (!operation) throw new Error(`services/ingress/openapi/operations has no operation for ${method} ${path}.`)
  return { method, path: templateOf(path), scope, operation }
}

function serviceRowOf([name, operation]: [string, Operation]): Row {
  const [method = '', path = ''] = name.split(' ')
  return { method, path, scope: 'none', operation }
}

function lineOf({ method, path, scope, operation: { summary, guide } }: Row): string {
  const [page, anchor] = guide?.split('#') ?? []
  const linked = page ? `[${summary}](${page}.md${anchor ? `#${anchor}` : ''})` : summary
  return `| \`${method}\` | \`${path}\` | ${scope === 'none' ? 'none' : `\`${scope}\``} | ${linked} |`
}

if (import.meta.main) for (const page of Object.keys(GENERATED)) writeFileSync(page, regenerate(page))
