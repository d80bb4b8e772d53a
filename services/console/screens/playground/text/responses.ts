import { textForm } from './text-form.tsx'

interface ResponsesEvent {
  readonly type: string
  readonly delta?: string
  readonly response?: { readonly usage?: { readonly output_tokens: number } | null }
}

/** Events with visible text. A refusal is shown like an answer. */
const TEXTS: ReadonlySet<string> = new Set(['response.output_text.delta', 'response.refusal.delta'])

/** The form of OpenAI's Responses API. */
export const ResponsesForm = textForm<ResponsesEvent>({
  path: '/v1/responses',
  method: 'responses',
  capability: 'chat',
  options: ['instructions', 'max_output_tokens', 'temperature', 'top_p', 'store', 'truncation', 'service_tier'],
  values: { max_output_tokens: '512' },
  input: 'What is a sluice?',
  toRequest: (input) => ({ input }),
  pieceOf: ({ type, delta, response }) => ({
    text: TEXTS.has(type) ? delta : undefined,
    tokens: response?.usage?.output_tokens,
  }),
})
