import { textForm } from './text-form.tsx'

interface MessagesEvent {
  readonly type: string
  readonly delta?: { readonly type?: string; readonly text?: string }
  readonly usage?: { readonly output_tokens: number }
}

/** The form of Anthropic's Messages API. */
export const MessagesForm = textForm<MessagesEvent>({
  path: '/v1/messages',
  method: 'messages',
  capability: 'messages',
  options: ['max_tokens', 'system', 'temperature', 'top_p', 'top_k', 'service_tier'],
  // The Messages API requires max_tokens.
  values: { max_tokens: '512' },
  input: 'What is a sluice?',
  toRequest: (content) => ({ messages: [{ role: 'user', content }] }),
  pieceOf: ({ type, delta, usage }) => ({
    text: type === 'content_block_delta' ? delta?.text : undefined,
    tokens: usage?.output_tokens,
  }),
})
