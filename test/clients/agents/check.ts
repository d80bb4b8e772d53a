/** One run of an agent through Sluice on an upstream of one API, and the conditions that the run must meet. */
import { startStack } from '../../support/stack.ts'
import { PAGE_KEY } from '../page.ts'
import { type Agent, openWorkplace, runAgent } from './agents.ts'
import type { Json } from './conversation.ts'
import { type AgentUpstream, startAgentUpstream } from './upstream.ts'
import { startWitness } from './witness.ts'

/** API of the upstream. */
export type Api = 'chat' | 'messages' | 'responses'
export const APIS: readonly Api[] = ['chat', 'messages', 'responses']

const MODEL_ID = 'scripted-1'

/**
 * Runs an agent against Sluice and a scripted upstream. The model name that the agent sends is an alias in Sluice.
 *
 * @param bin Directory of the agent's command
 * @param parent Directory for its project and home, removed afterwards
 * @returns Every failure; empty for a correct run
 */
export async function failuresOf(
  agent: Agent,
  bin: string,
  parent: string,
  api: Api,
  model: string,
): Promise<string[]> {
  await using workplace = await openWorkplace(parent)
  await using upstream = await startAgentUpstream(workplace.project)
  await using stack = await startStack({
    models: [modelOf(api, upstream, model)],
    settings: { SLUICE_API_KEY: PAGE_KEY },
  })
  await using witness = await startWitness(stack.url)
  const failures: string[] = []
  await runAgent(agent, bin, workplace, { url: witness.url, model }).catch((error: Error) =>
    failures.push(error.message),
  )
  const { dropsThoughts, models } = agent
  const calls = upstream.served.flatMap(({ conversation }) => conversation.results)
  const mark = models[model] ?? ''
  const all = [
    ...failures,
    ...upstream.problems.map((problem) => `The upstream refused ${problem}`),
    ...witness.refusals.map((refusal) => `Sluice refused ${refusal}`),
    ...witness.models.filter((named) => named !== model).map((named) => `Sluice named the model ${named}`),
    ...(calls.some(({ name, output }) => `${name}: ${output}`.includes(mark))
      ? []
      : [`No tool call contains '${mark}'.`]),
    ...(dropsThoughts || hasThoughts(upstream)
      ? []
      : ['The last request does not contain the earlier reasoning of the model.']),
  ]
  // An agent retries refused requests, so a failure may repeat.
  return [...new Set(all)]
}

function modelOf(api: Api, { url }: AgentUpstream, alias: string): Json {
  const engine = {
    chat: { type: 'openai', base_url: `${url}/v1` },
    messages: { type: 'anthropic', base_url: url },
    responses: { type: 'openai', base_url: `${url}/v1`, api: 'responses' },
  }[api]
  return {
    id: MODEL_ID,
    aliases: [alias],
    engine,
    capabilities: { images: true, files: true, reasoning: true },
    limits: { context_tokens: 1_000_000, max_output_tokens: 100_000, default_output_tokens: 32_000 },
  }
}

/** Whether the last request of a reasoning model contains its earlier reasoning. */
function hasThoughts({ served }: AgentUpstream): boolean {
  const thinking = served.filter(({ conversation }) => conversation.wantsThought && conversation.results.length > 0)
  const last = thinking.at(-1)
  return last === undefined || last.conversation.thoughts > 0
}
