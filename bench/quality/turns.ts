import { homedir } from 'node:os'
import { join } from 'node:path'
import { ask, llamaEngine, options } from '../../test/support/engine-calls.ts'
import { median } from '../results/samples.ts'
import { type Goal, renderGoals, renderTable, show } from '../results/tables.ts'

/*
 * Measures the time to the first token of the second turn of a conversation with the default chat model. The prompt contains the long first
 * turn, which is in the prompt cache, so only the new tokens are evaluated. The baseline is a prompt that is not in the cache, and that has
 * 10 tokens more than these new tokens.
 *
 *     node bench/quality/turns.ts
 *
 * The behaviour is tested in `test/shared/engines/llama/prompt-cache.test.ts`.
 */

const MODEL = 'smollm2-135m-instruct'
const ROUNDS = 10
const RATIO_MAX = 1.3
const BASELINE_TOKENS = 10
const FACTS = Array.from({ length: 80 }, (_, at) => `Parcel ${at} weighs ${(at * 7) % 31} kilograms.`).join(' ')
const QUESTION = 'And how much does parcel 7 weigh?'

const weightsDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')
const engine = llamaEngine(MODEL, weightsDir, { context_tokens: 2048, parallel: 2 })

interface Call {
  readonly text: string
  readonly firstMs: number
  readonly inputTokens: number
  readonly newTokens: number
}

/** @param project Project whose prompt cache is used. Without a project, every token of the prompt is evaluated. */
async function call(project: string | undefined, turns: readonly object[]): Promise<Call> {
  const startedAt = performance.now()
  let [text, firstMs, inputTokens, newTokens] = ['', Number.NaN, 0, 0]
  const request = ask({ turns, temperature: 0, max_tokens: 12 })
  for await (const event of engine.generate(request, { ...options(), tenant: project })) {
    if (event.type === 'text') {
      if (text === '') firstMs = performance.now() - startedAt
      text += event.text
    }
    if (event.type === 'usage') {
      inputTokens = event.usage.input_tokens
      newTokens = inputTokens - (event.usage.cached_tokens ?? 0)
    }
  }
  return { text, firstMs, inputTokens, newTokens }
}

function say(text: string, role: 'user' | 'assistant' = 'user'): object {
  return { role, parts: [{ type: 'text', text }] }
}

/** Returns a message whose prompt has the requested number of tokens. Each repeated word is one token. */
async function promptOf(tokens: number): Promise<object[]> {
  const { inputTokens } = await call(undefined, [say('word')])
  return [say(`word${' word'.repeat(Math.max(0, tokens - inputTokens))}`)]
}

const [firsts, seconds, baselines]: [Call[], Call[], Call[]] = [[], [], []]
await call(undefined, [say('Hello')])
for (let round = 0; round <= ROUNDS; round++) {
  const opening = say(`Order ${round}. ${FACTS} How much does parcel 3 weigh?`)
  const first = await call('bench', [opening])
  const second = await call('bench', [opening, say(first.text, 'assistant'), say(QUESTION)])
  const baseline = await call(undefined, await promptOf(BASELINE_TOKENS + second.newTokens))
  if (round === 0) continue
  firsts.push(first)
  seconds.push(second)
  baselines.push(baseline)
}
await engine.close()

const medianOf = (calls: readonly Call[], figure: 'firstMs' | 'inputTokens' | 'newTokens') =>
  median(calls.map((each) => each[figure]))
const rows = (
  [
    ['first turn', firsts],
    ['second turn', seconds],
    ['baseline', baselines],
  ] as const
).map(([name, calls]) => [
  name,
  show(medianOf(calls, 'inputTokens'), 0),
  show(medianOf(calls, 'newTokens'), 0),
  show(medianOf(calls, 'firstMs'), 0),
])
const measured = medianOf(seconds, 'firstMs') / medianOf(baselines, 'firstMs')
const goal: Goal = { name: 'time to the first token, second turn', measured, unit: '× baseline', max: RATIO_MAX }
console.log(renderTable(['prompt', 'tokens', 'evaluated tokens', 'first token after ms'], rows))
console.log(`\n${renderGoals([goal])}`)
