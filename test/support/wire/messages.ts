/** Joins the frames of a Messages stream to a message, as clients of the API do. */
export function messageOf(frames: readonly Frame[]): Record<string, unknown> {
  let message: Record<string, unknown> = {}
  const blocks: Record<string, unknown>[] = []
  const inputs: string[] = []
  for (const { type, index = 0, ...frame } of frames) {
    if (type === 'message_start') message = { ...frame.message }
    else if (type === 'content_block_start') blocks[index] = { ...frame.content_block }
    else if (type === 'content_block_delta') addDelta(blocks[index] ?? {}, frame.delta ?? {}, inputs, index)
    else if (type === 'content_block_stop' && inputs[index]) {
      blocks[index] = { ...blocks[index], input: parsed(inputs[index]) }
    } else if (type === 'message_delta') {
      const { delta, usage, ...beside } = frame
      message = { ...message, ...delta, ...beside, usage: { ...(message.usage as object), ...usage } }
    }
  }
  return { ...message, content: blocks }
}

export interface Frame {
  readonly type: string
  readonly index?: number
  readonly message?: Record<string, unknown>
  readonly content_block?: Record<string, unknown>
  readonly delta?: Record<string, unknown>
  readonly usage?: object
}

function addDelta(
  block: Record<string, unknown>,
  delta: Record<string, unknown>,
  inputs: string[],
  index: number,
): void {
  const { type, text, thinking, signature, partial_json, citation } = delta
  if (type === 'text_delta') block.text = `${String(block.text)}${String(text)}`
  else if (type === 'thinking_delta') block.thinking = `${String(block.thinking)}${String(thinking)}`
  else if (type === 'signature_delta') block.signature = signature
  else if (type === 'input_json_delta') inputs[index] = `${inputs[index] ?? ''}${String(partial_json)}`
  else if (type === 'citations_delta') block.citations = [...((block.citations as unknown[]) ?? []), citation]
  else throw new Error(`unknown delta ${String(type)}`)
}

/** Parses the input of a tool call. If the response was truncated, then the JSON is invalid and the input is empty. */
function parsed(json: string): unknown {
  try {
    return JSON.parse(json)
  } catch {
    return {}
  }
}
