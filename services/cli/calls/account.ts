import { z } from 'zod'
import { Price } from '#schemas/price.ts'
import { type Command, noArguments } from '#services/cli/commands/command.ts'
import { EXIT, plain, tableOf } from '#services/cli/text/output.ts'

/** Answer of `GET /v1/key`; newer services may send more fields. */
const OwnKey = z.looseObject({
  id: z.string(),
  name: z.string().nullable(),
  project: z.string(),
  project_name: z.string().nullish(),
  scopes: z.array(z.string()),
  endpoints: z.array(z.string()).nullable(),
  models: z.array(z.string()).nullable(),
  expires_at: z.number().nullable(),
  limits: z.record(z.string(), z.unknown()),
})

export const whoami: Command = {
  summary: 'Show the project and the rights of your key',
  help: `Usage: sluice whoami

Shows the service, and the key that the tool uses: its project, scopes, endpoints, models, limits and expiry.

Examples:
  sluice whoami
  sluice whoami --json | jq .limits`,
  options: {},
  async run({ args, api, out }) {
    noArguments(args)
    const key = await api.http.json(OwnKey, '/v1/key')
    if (out.isHumanReadable) await out.write(textOf(api.http.url, key))
    else await out.json(key)
    return EXIT.ok
  },
}

function textOf(url: string, key: z.infer<typeof OwnKey>): string {
  const limits = Object.entries(key.limits).map(([name, value]) => `${name}=${String(value)}`)
  const expiry = key.expires_at === null ? 'never' : new Date(key.expires_at * 1_000).toISOString()
  const rows = [
    ['service', url],
    ['key', named(key.id, key.name)],
    ['project', named(key.project, key.project_name)],
    ['scopes', key.scopes.join(', ')],
    ['endpoints', key.endpoints?.join(', ') ?? 'all'],
    ['models', key.models?.join(', ') ?? 'all'],
    ['limits', limits.join(', ') || 'none'],
    ['expires', expiry],
  ]
  return rows.map(([name = '', value = '']) => `${name.padEnd(9)}  ${plain(value)}\n`).join('')
}

function named(id: string, name: string | null | undefined): string {
  return name && name !== id ? `${name} (${id})` : id
}

const Models = z.looseObject({
  data: z.array(
    z.looseObject({
      id: z.string(),
      owned_by: z.string(),
      status: z.string().optional(),
      capabilities: z.array(z.string()).default([]),
      context_length: z.number().optional(),
      max_output_tokens: z.number().optional(),
      price: Price.partial().optional().catch(undefined),
    }),
  ),
})
export type ListedModel = z.infer<typeof Models>['data'][number]

export async function listModels(http: Parameters<Command['run']>[0]['api']['http']): Promise<ListedModel[]> {
  return (await http.json(Models, '/v1/models')).data
}

export const models: Command = {
  summary: 'List the models that your key may use',
  isList: true,
  help: `Usage: sluice models [--capability NAME]

Lists the models with their capabilities and limits.

Options:
  --capability NAME  only models with this capability, such as chat, embeddings or transcription

Examples:
  sluice models
  sluice models --capability chat -o csv`,
  options: { capability: { type: 'string' } },
  async run({ args, api, out, values }) {
    noArguments(args)
    const capability = values.text('capability')
    const all = await listModels(api.http)
    const found = all.filter(({ capabilities }) => capability === undefined || capabilities.includes(capability))
    if (values.text('output') === 'csv') for (const model of found) await out.json(csvRowOf(model))
    else if (!out.isHumanReadable) for (const model of found) await out.json(model)
    else if (found.length === 0) await out.write('No models.\n')
    else {
      const hasStatus = found.some(({ status }) => status !== undefined)
      const rows = found.map((model) => [
        model.id,
        ...(hasStatus ? [model.status ?? ''] : []),
        model.capabilities.join(', '),
        String(model.context_length ?? ''),
        priceText(model),
      ])
      const table = {
        head: ['id', ...(hasStatus ? ['status'] : []), 'capabilities', 'context', '$/M in/out'],
        rows,
        spare: ['$/M in/out'],
        cut: ['capabilities'],
      }
      await out.write(tableOf(table, out.columns))
    }
    return EXIT.ok
  },
}

/** Returns the CSV row of a model. All rows have equal fields, because the fields of the first row become the head of the table. */
function csvRowOf({ id, capabilities, context_length, max_output_tokens, price }: ListedModel) {
  const { input_per_million = '', output_per_million = '' } = price ?? {}
  const limits = { context_length: context_length ?? '', max_output_tokens: max_output_tokens ?? '' }
  return {
    id,
    ...limits,
    capabilities,
    input_usd_per_million: input_per_million,
    output_usd_per_million: output_per_million,
  }
}

function priceText({ price }: ListedModel): string {
  return price ? `${price.input_per_million ?? 0} / ${price.output_per_million ?? 0}` : ''
}
