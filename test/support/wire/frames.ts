/** Functions that build responses of upstream servers. */

export const SSE = { 'content-type': 'text/event-stream' }
export const JSON_TYPE = { 'content-type': 'application/json' }

/** Encodes one event of an event stream. */
export function frame(value: unknown, event?: string): string {
  return `${event === undefined ? '' : `event: ${event}\n`}data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`
}

export function chunk(delta: object, finish: string | null = null, more: object = {}): object {
  const choices = [{ index: 0, delta, finish_reason: finish }]
  return { id: 'c1', object: 'chat.completion.chunk', created: 1, model: 'm', choices, ...more }
}

export const DONE = frame('[DONE]')
export const ROLE = frame(chunk({ role: 'assistant', content: '' }))
export const HELLO = frame(chunk({ content: 'Hello' }))
export const STOP = frame(chunk({}, 'stop'))
export const CHAT_USAGE = { prompt_tokens: 9, completion_tokens: 4, total_tokens: 13 }
export const USAGE = frame({ ...chunk({}), choices: [], usage: CHAT_USAGE })
/** A complete stream of chat completions with the text Hello. */
export const STREAM = ROLE + HELLO + STOP + USAGE + DONE

export function completion(message: object, finish: string | null = 'stop', more: object = {}): object {
  const choices = [{ index: 0, message: { role: 'assistant', content: null, ...message }, finish_reason: finish }]
  return { id: 'c1', object: 'chat.completion', created: 1, model: 'm', choices, usage: CHAT_USAGE, ...more }
}

export const WHOLE = JSON.stringify(completion({ content: 'Hello' }))

/** Encodes an event of the Messages or Responses API, whose event name is its `type`. */
export function event(value: { readonly type: string; readonly [field: string]: unknown }): string {
  return frame(value, value.type)
}

/** A complete stream of the Messages API with these content blocks, from `message_start` to `message_stop`. */
export function messageStream(blocks: string, stopReason = 'end_turn'): string {
  const usage = { input_tokens: 9, output_tokens: 1 }
  return (
    event({ type: 'message_start', message: { id: 'msg_1', type: 'message', role: 'assistant', content: [], usage } }) +
    blocks +
    event({
      type: 'message_delta',
      delta: { stop_reason: stopReason, stop_sequence: null },
      usage: { output_tokens: 4 },
    })
  )
}

export const HELLO_BLOCK =
  event({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } }) +
  event({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'Hello' } }) +
  event({ type: 'content_block_stop', index: 0 })
export const MESSAGE_STOP = event({ type: 'message_stop' })

/** Output item of the Responses API: a message with the text Hello. */
export const MESSAGE_ITEM = {
  type: 'message',
  id: 'msg_1',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text: 'Hello', annotations: [] }],
}

/**
 * Returns a completed response object of the Responses API.
 *
 * @param more Fields that replace or extend those of the object
 */
export function response(output: readonly object[], more: object = {}): object {
  const usage = { input_tokens: 9, output_tokens: 4, total_tokens: 13 }
  return { id: 'resp_1', object: 'response', status: 'completed', output, usage, ...more }
}

/** A stream of the Responses API with the text Hello. The response is completed or incomplete. */
export const RESPONSE_STREAM =
  event({ type: 'response.created', response: { id: 'resp_1', status: 'in_progress', output: [] } }) +
  event({ type: 'response.output_item.added', output_index: 0, item: { ...MESSAGE_ITEM, content: [] } }) +
  event({
    type: 'response.output_text.delta',
    output_index: 0,
    content_index: 0,
    item_id: 'msg_1',
    delta: 'Hello',
  }) +
  event({ type: 'response.output_item.done', output_index: 0, item: MESSAGE_ITEM }) +
  event({ type: 'response.completed', response: response([MESSAGE_ITEM]) })
