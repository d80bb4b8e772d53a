import { workOf } from '#schemas/models.ts'
import { type Config, urlOf } from '#shared/config/config.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { Ingress } from './ingress/ingress.ts'
import type { Role } from './services.ts'

/** Roles that download or build something before they can run a job. */
const PREPARING: readonly Role[] = ['inference', 'embeddings', 'transcription', 'code']

const FIRST_START = [
  'The first start downloads the models and builds the sandbox for code, about 1 GB in total. Calls wait until',
  'their model or the sandbox is ready, and streams show the progress.',
]

/**
 * Returns the lines that an ingress prints when it is ready: its URL, the API key and an example call.
 *
 * @param isTerminal Whether the lines appear on a terminal. Otherwise SLUICE_API_KEY is left out, because a secret must not reach a log
 * @param served Models that the workers of this process run; the example call names the first text model.
 * @param fetching Roles of this process that still download or build something; empty after the first start.
 */
export function greetingOf(
  config: Pick<Config, 'host' | 'sluiceApiKey'>,
  ingress: Pick<Ingress, 'port' | 'createdKey'>,
  served: Pick<ModelCatalogue['served'], 'models'>,
  fetching: readonly Role[],
  isTerminal = false,
): string[] {
  const url = urlOf(config.host, ingress.port)
  const lines = [`Sluice listens on ${url}`, ...keyLines(config, ingress.createdKey, isTerminal)]
  const model = served.models.find((model) => workOf(model) === 'inference')?.id ?? 'MODEL'
  lines.push(
    `  curl ${url}/v1/chat/completions \\`,
    `    -H "Authorization: Bearer $SLUICE_API_KEY" -H 'Content-Type: application/json' \\`,
    `    -d '{"model":"${model}","messages":[{"role":"user","content":"What is the capital of France?"}]}'`,
  )
  if (fetching.some((role) => PREPARING.includes(role))) lines.push('', ...FIRST_START)
  return lines
}

function keyLines(
  { sluiceApiKey }: Pick<Config, 'sluiceApiKey'>,
  createdKey: string | undefined,
  isTerminal: boolean,
): string[] {
  const key = createdKey ?? (isTerminal ? sluiceApiKey : undefined)
  if (key !== undefined) {
    const shown = createdKey === undefined ? [] : [`Your API key, shown only now: ${createdKey}`]
    return [...shown, '', 'Try it in another terminal:', `  export SLUICE_API_KEY=${shellQuoted(key)}`]
  }
  const whence =
    sluiceApiKey === undefined
      ? 'that was shown at the first start (lost? npx sluice keys create)'
      : 'that the service was started with'
  return ['', `Try it in another terminal, with SLUICE_API_KEY set to the key ${whence}:`]
}

function shellQuoted(text: string): string {
  return /^[\w.-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}
