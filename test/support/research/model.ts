import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'

/** A call to the scripted model. `data` is the JSON in the user message. */
export interface Call {
  readonly key: string
  readonly data: Record<string, unknown>
  readonly body: GenerateRequest
}

/**
 * Answers of the scripted model. The property name is the beginning of a call's key, such as `note`. The function returns an object, or a text if
 * the call requests no JSON.
 */
export type Script = Readonly<Record<string, (call: Call) => unknown>>

/** A scripted model that answers child jobs. A call for which the script has no answer fails. */
export function scriptedModel(script: Script): { run(child: ChildJob): Promise<ChildEnd>; readonly calls: Call[] } {
  const calls: Call[] = []
  return {
    calls,
    async run({ key, body }) {
      const request = body as GenerateRequest
      const [part] = request.turns[1]?.parts ?? []
      const data = JSON.parse(part?.type === 'text' ? part.text : '{}') as Record<string, unknown>
      const call = { key, data, body: request }
      calls.push(call)
      const [, answer] = Object.entries(script).find(([start]) => key.startsWith(start)) ?? []
      const given = answer?.(call)
      if (given === undefined) {
        return { id: key, state: 'failed', error: { code: 'upstream_error', message: 'It is away.', param: null } }
      }
      const content = typeof given === 'string' ? given : JSON.stringify(given)
      const usage = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 }
      const result = { choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }], usage }
      return { id: key, state: 'completed', result, usage: null }
    },
  }
}
