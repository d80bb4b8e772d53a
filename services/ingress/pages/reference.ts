import { Marked } from 'marked'
import { escaped, GUIDE } from './guide.ts'
import { withSiteHeader } from './site.ts'

/*
 * API reference: an HTML page made from the OpenAPI document. Each operation is a `<details>` element below the heading of its tag.
 * Each schema is a `<details>` element below the heading Schemas. The page works without JavaScript. The script adds the filter and
 * the copy buttons.
 */

interface Schema {
  readonly $ref?: string
  readonly type?: string | readonly string[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly default?: unknown
  readonly description?: string
  readonly properties?: Readonly<Record<string, Schema>>
  readonly required?: readonly string[]
  readonly items?: Schema
  readonly anyOf?: readonly Schema[]
  readonly oneOf?: readonly Schema[]
  readonly allOf?: readonly Schema[]
  readonly additionalProperties?: Schema | boolean
  readonly contentSchema?: Schema
}

interface Parameter {
  readonly name: string
  readonly in: string
  readonly required?: boolean
  readonly description?: string
  readonly schema: Schema
}

type Content = Readonly<Record<string, { readonly schema?: Schema }>>

interface Operation {
  readonly operationId: string
  readonly tags: readonly string[]
  readonly summary: string
  readonly description?: string
  readonly externalDocs?: { readonly url: string }
  readonly parameters?: readonly Parameter[]
  readonly requestBody?: { readonly content: Content }
  readonly responses: Readonly<Record<string, { readonly description: string; readonly content?: Content }>>
  readonly security?: readonly unknown[]
}

export interface OpenApi {
  readonly info: { readonly version: string; readonly description: string }
  readonly tags: readonly { readonly name: string; readonly description: string }[]
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> }
}

interface Row extends Operation {
  readonly method: string
  readonly path: string
}

const marked = new Marked({ gfm: true })
/** Depth to which the fields of nested objects are listed. */
const DEPTH_MAX = 3
const VALUES_MAX = 12

export function referenceHtml(api: OpenApi): string {
  const rows = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): Row => ({ ...operation, method: method.toUpperCase(), path })),
  )
  const tags = api.tags.map((tag) => ({ ...tag, rows: rows.filter(({ tags: [first] }) => first === tag.name) }))
  const names = Object.keys(api.components.schemas).toSorted()
  const links = [...tags.map(({ name }) => name), 'Schemas'].map(
    (name) => `<li><a href="#${idOf(name)}">${name}</a></li>`,
  )
  const nav = `<nav class="pages" aria-label="Groups of endpoints"><h2>API reference</h2><ul>${links.join('')}</ul></nav>`
  const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API reference · Sluice</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${GUIDE}/guide.css">
<link rel="stylesheet" href="/docs/reference.css">
<script type="module" src="/docs/copy.js"></script>
<script type="module" src="/docs/reference.js"></script>
</head>
<body>
<div class="columns">
<details class="menu"><summary>Groups of endpoints</summary>${nav}</details>
<aside>${nav}</aside>
<main id="content" class="reference">
<h1>API reference</h1>
${marked.parse(api.info.description)}
<p>Version ${escaped(api.info.version)}. The <a href="/openapi.json">OpenAPI document</a> is the source of this page.</p>
<search class="filter"></search>
${tags
  .map(({ name, description, rows: own }) =>
    sectionHtml(
      name,
      inline(description),
      own.map((row) => operationHtml(row, api.components.schemas)),
    ),
  )
  .join('')}
${sectionHtml(
  'Schemas',
  'Objects of requests and answers.',
  names.map((name) => schemaHtml(name, api.components.schemas[name] ?? {})),
)}
</main>
</div>
</body>
</html>
`
  return withSiteHeader(html, { current: '/docs', content: 'content' })
}

function sectionHtml(name: string, description: string, items: readonly string[]): string {
  return `<section><h2 id="${idOf(name)}">${name}</h2>\n<p>${description}</p>\n${items.join('\n')}</section>\n`
}

function idOf(tag: string): string {
  return tag.toLowerCase().replaceAll(/\W+/g, '-')
}

function operationHtml(row: Row, schemas: OpenApi['components']['schemas']): string {
  const { method, path, operationId, summary, description = '', externalDocs, parameters = [], requestBody } = row
  const [type = '', body] = Object.entries(requestBody?.content ?? {})[0] ?? []
  const bodySchema = body?.schema?.$ref ? schemas[nameOf(body.schema.$ref)] : body?.schema
  const guide = externalDocs && `<p><a href="${externalDocs.url}">Guide</a></p>`
  const fields = parameters.map(({ name, in: place, required, ...one }): Field => {
    return { name, type: typeOf(one.schema), note: place, isRequired: required === true, text: one.description ?? '' }
  })
  return `<details class="item" id="${operationId}"><summary><span class="method ${method.toLowerCase()}">${method}</span> <code>${escaped(path)}</code> <span class="summary">${escaped(summary)}</span></summary>
${description && marked.parse(description)}${guide ?? ''}
${fieldsHtml('Parameters', fields)}
${body?.schema ? `<h3>Request body</h3><p><code>${type}</code>: ${typeOf(body.schema)}</p>${fieldsHtml('Request body', fieldsOf(bodySchema ?? {}))}` : ''}
<h3>Example</h3>
<pre role="group" aria-label="Code" tabindex="0"><code>${escaped(curlOf(row, type))}</code></pre>
<h3>Answers</h3>
${answersHtml(row)}
</details>`
}

function answersHtml({ responses }: Row): string {
  const rows = Object.entries(responses).map(([status, { description, content = {} }]) => {
    const types = Object.entries(content).map(([type, { schema = {} }]) => `<code>${type}</code> ${typeOf(schema)}`)
    return [`<code>${status}</code>`, inline(description), types.join('<br>')]
  })
  return tableHtml('Answers', ['Status', 'Meaning', 'Body'], rows)
}

function schemaHtml(name: string, schema: Schema): string {
  const fields = fieldsOf(schema)
  const content = fields.length > 0 ? fieldsHtml(`Fields of ${name}`, fields) : `<p>${typeOf(schema)}</p>`
  return `<details class="item" id="schema-${name}"><summary><code>${name}</code></summary>
${schema.description ? `<p>${inline(schema.description)}</p>` : ''}${content}</details>`
}

interface Field {
  readonly name: string
  /** The type as HTML, from {@link typeOf}. */
  readonly type: string
  readonly note: string
  readonly isRequired: boolean
  readonly text: string
}

/** Returns the fields of an object. The field of an inner object has a name such as `limits.running`. */
function fieldsOf(schema: Schema, prefix = '', depth = 0): readonly Field[] {
  const all = [schema, ...(schema.allOf ?? [])]
  return all.flatMap(({ properties = {}, required = [] }) =>
    Object.entries(properties).flatMap(([name, one]): Field[] => {
      const note = one.default === undefined ? '' : `Default: ${JSON.stringify(one.default)}`
      const own = { name: prefix + name, type: typeOf(one), note, isRequired: required.includes(name) }
      const inner = one.type === 'array' ? one.items : one
      const innerPrefix = `${prefix}${name}${one.type === 'array' ? '[]' : ''}.`
      const below = inner && depth < DEPTH_MAX ? fieldsOf(inner, innerPrefix, depth + 1) : []
      return [{ ...own, text: one.description ?? '' }, ...below]
    }),
  )
}

function fieldsHtml(title: string, fields: readonly Field[]): string {
  if (fields.length === 0) return ''
  const rows = fields.map(({ name, type, note, isRequired, text }) => [
    `<code>${escaped(name)}</code>${isRequired ? ' <small>required</small>' : ''}`,
    `${type}${note && ` <small>${escaped(note)}</small>`}`,
    inline(text),
  ])
  return `${title === 'Parameters' ? '<h3>Parameters</h3>' : ''}${tableHtml(title, ['Name', 'Type', 'Meaning'], rows)}`
}

function tableHtml(label: string, heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const body = rows.map((cells) => `<tr>${cells.map((cell) => `<td>${cell}</td>`).join('')}</tr>`).join('')
  const head = heads.map((one) => `<th scope="col">${one}</th>`).join('')
  return `<div class="table" role="group" aria-label="${label}" tabindex="0"><table><thead><tr>${head}</tr></thead><tbody>${body}</tbody></table></div>`
}

/** Returns the type of a schema as HTML, such as `array of <a>ChatMessage</a>`. A named schema is a link. */
function typeOf(schema: Schema): string {
  const { $ref, anyOf, oneOf, enum: values, items, type, contentSchema } = schema
  if ($ref) {
    const name = nameOf($ref)
    return `<a href="#schema-${name}">${name}</a>`
  }
  const either = anyOf ?? oneOf
  if (either) return [...new Set(either.map(typeOf))].join(' or ')
  if (schema.const !== undefined) return `<code>${escaped(JSON.stringify(schema.const))}</code>`
  if (values) {
    const shown = values.slice(0, VALUES_MAX).map((value) => `<code>${escaped(JSON.stringify(value))}</code>`)
    return shown.join(' or ') + (values.length > VALUES_MAX ? ' or others' : '')
  }
  if (contentSchema) return `JSON of ${typeOf(contentSchema)}`
  if (type === 'array') return `array of ${items ? typeOf(items) : 'any'}`
  const stream = schema.properties?.data?.contentSchema
  if (stream) return `events of ${typeOf(stream)}`
  return typeof type === 'string' ? type : (type?.join(' or ') ?? 'any')
}

function nameOf($ref: string): string {
  return $ref.slice($ref.lastIndexOf('/') + 1)
}

/** Bodies of the examples, by path. The body of any other example is an empty object. */
const BODIES: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  '/v1/chat/completions': { model: 'MODEL', messages: [{ role: 'user', content: 'Hello' }] },
  '/v1/messages': { model: 'MODEL', max_tokens: 256, messages: [{ role: 'user', content: 'Hello' }] },
  '/v1/responses': { model: 'MODEL', input: 'Hello' },
  '/v1/completions': { model: 'MODEL', prompt: 'Once upon a time' },
  '/v1/embeddings': { model: 'MODEL', input: ['A text'] },
  '/v1/rerank': { model: 'MODEL', query: 'A question', documents: ['A text', 'Another text'] },
  '/v1/moderations': { input: 'A text' },
  '/v1/audio/speech': { model: 'MODEL', input: 'Hello', voice: 'VOICE' },
  '/v1/tools/code': { code: 'print(6 * 7)' },
  '/v1/batches': { input_file_id: 'FILE_ID', endpoint: '/v1/chat/completions', completion_window: '24h' },
  '/v1/jobs': {
    endpoint: '/v1/chat/completions',
    body: { model: 'MODEL', messages: [{ role: 'user', content: 'Hello' }] },
  },
}

/** Returns a curl command that calls the operation. The reader replaces words in capitals with values. */
function curlOf({ method, path, security }: Row, bodyType: string): string {
  const url = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase())
  const body = BODIES[path] ?? {}
  const parts = [
    `curl ${method === 'GET' ? '' : `-X ${method} `}"$SLUICE_URL${url}"`,
    ...(security?.length === 0 ? [] : ['  -H "Authorization: Bearer $SLUICE_API_KEY"']),
    ...(bodyType === 'application/json'
      ? ["  -H 'Content-Type: application/json'", `  -d '${JSON.stringify(body)}'`]
      : []),
    ...(bodyType === 'multipart/form-data'
      ? ['  -F file=@FILE', ...(path.includes('audio') ? ['  -F model=MODEL'] : [])]
      : []),
  ]
  return parts.join(' \\\n')
}

function inline(text: string): string {
  return String(marked.parseInline(text))
}
