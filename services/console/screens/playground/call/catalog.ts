import { signal } from '@preact/signals'
import { fetchJson, type Model, type Page } from '#services/console/api/client.ts'

interface Schema {
  readonly $ref?: string
  readonly type?: string | readonly string[]
  readonly anyOf?: readonly Schema[]
  readonly enum?: readonly string[]
  readonly minimum?: number
  readonly maximum?: number
  readonly description?: string
  readonly properties?: Readonly<Record<string, Schema>>
}

/** The subset of `GET /openapi.json` that forms read. */
interface Reference {
  readonly paths: Readonly<
    Record<
      string,
      {
        readonly post?: {
          readonly parameters?: readonly { readonly name: string }[]
          readonly requestBody?: { readonly content: Readonly<Record<string, { schema: Schema }>> }
        }
      }
    >
  >
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> }
}

export interface Field {
  readonly name: string
  readonly label: string
  readonly kind: 'number' | 'choice' | 'switch' | 'text'
  readonly min: number | undefined
  readonly max: number | undefined
  readonly step: number | 'any'
  readonly choices: readonly string[]
  readonly hint: string
}

/**
 * A bound of at least this absolute value is not shown as a limit. Such a bound, for example `maximum: 9007199254740991`, is only the range
 * of the integer type.
 */
const UNLIMITED = 2 ** 52

function fieldsOf(reference: Reference, path: string, names: readonly string[]): readonly Field[] {
  const content = reference.paths[path]?.post?.requestBody?.content ?? {}
  const schema = resolved(reference, Object.values(content)[0]?.schema ?? {})
  return names.flatMap((name) => {
    const property = schema.properties?.[name]
    return property ? [fieldOf(name, property)] : []
  })
}

export function filledFields(
  fields: readonly Field[],
  values: Readonly<Record<string, string>>,
): Readonly<Record<string, unknown>> {
  const filled = fields.flatMap(({ name, kind }) => {
    const value = values[name] ?? ''
    if (value === '') return []
    return [[name, kind === 'number' ? Number(value) : kind === 'switch' ? value === 'true' : value]]
  })
  return Object.fromEntries(filled)
}

function resolved({ components }: Reference, schema: Schema): Schema {
  const name = schema.$ref?.split('/').at(-1)
  return name === undefined ? schema : (components.schemas[name] ?? {})
}

function fieldOf(name: string, property: Schema): Field {
  const schema = property.anyOf?.find(({ type }) => type !== 'null') ?? property
  const types = [schema.type ?? []].flat()
  const { minimum, maximum } = schema
  return {
    name,
    label: `${name[0]?.toUpperCase()}${name.slice(1).replaceAll('_', ' ')}`,
    kind: schema.enum
      ? 'choice'
      : types.includes('number') || types.includes('integer')
        ? 'number'
        : types.includes('boolean')
          ? 'switch'
          : 'text',
    min: minimum !== undefined && minimum > -UNLIMITED ? minimum : undefined,
    max: maximum !== undefined && maximum < UNLIMITED ? maximum : undefined,
    step: types.includes('integer') || name === 'seed' ? 1 : 'any',
    choices: schema.enum ?? [],
    hint: property.description ?? '',
  }
}

export interface Catalog {
  readonly models: readonly Model[]
  readonly reference: Reference
}

export const catalog = signal<Catalog | undefined>(undefined)

export async function loadCatalog(): Promise<void> {
  const [{ data: models }, reference] = await Promise.all([
    fetchJson<Page<Model>>('/v1/models'),
    fetchJson<Reference>('/openapi.json'),
  ])
  catalog.value = { models, reference }
}

const SCALARS: ReadonlySet<string> = new Set(['string', 'number', 'integer', 'boolean', 'null'])

function isScalar({ type, enum: choices, anyOf }: Schema): boolean {
  if (anyOf) return anyOf.every(isScalar)
  return choices !== undefined || (type !== undefined && [type].flat().every((one) => SCALARS.has(one)))
}

/**
 * Returns the endpoints that can run as jobs and whose JSON body has only scalar fields, such as texts and numbers. The key is the path of
 * the endpoint, and the value is the list of its fields.
 */
export function scalarEndpointsOf(reference: Reference): ReadonlyMap<string, readonly string[]> {
  const all = Object.entries(reference.paths).flatMap(([path, { post }]) => {
    const body = post?.requestBody?.content['application/json']?.schema
    if (!body || !post.parameters?.some(({ name }) => name === 'prefer')) return []
    const properties = Object.entries(resolved(reference, body).properties ?? {})
    return properties.every(([, schema]) => isScalar(schema)) ? [[path, properties.map(([name]) => name)] as const] : []
  })
  return new Map(all)
}

/** Returns the options of an endpoint with these names, if its schema has them. Empty until the schema is loaded. */
export function optionsOf(path: string, names: readonly string[]): readonly Field[] {
  return catalog.value ? fieldsOf(catalog.value.reference, path, names) : []
}

export function modelsFor(capability: string): readonly Model[] {
  return catalog.value?.models.filter(({ capabilities }) => capabilities.includes(capability)) ?? []
}

/**
 * Returns the wanted model if it has the capability, or else the first model with the capability, or else an empty
 * string.
 */
export function modelFor(capability: string, wanted: string): string {
  const ids = modelsFor(capability).map(({ id }) => id)
  return ids.includes(wanted) ? wanted : (ids[0] ?? '')
}
