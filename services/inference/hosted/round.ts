import type { GenerateEvent, GenerateRequest, HostedTool, Part, Usage } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'

/** A call of a hosted tool, as the model wrote it. */
export interface HostedCall {
  readonly tool: HostedTool
  readonly id: string
  readonly arguments: string
}

/** Only the first round emits a start event. */
export interface Round {
  /** Text, refusals and reasoning; in the first round also the start event. */
  readonly said: readonly GenerateEvent[]
  readonly hosted: readonly HostedCall[]
  /** Calls of the caller's own functions. */
  readonly functions: readonly GenerateEvent[]
  readonly finish: Extract<GenerateEvent, { type: 'finish' }>
  readonly usage: Usage
  /** The text and reasoning as parts of the conversation that the next round reads. Calls are added separately. */
  readonly parts: readonly Part[]
}

/**
 * Sorts the events of a round.
 *
 * @param prefix Prefix of generated ids, for calls whose engine sent no id.
 * @throws ServiceError `upstream_error` if the engine did not finish
 */
export function readRound(events: readonly GenerateEvent[], tools: readonly HostedTool[], prefix: string): Round {
  const said: GenerateEvent[] = []
  const functions: GenerateEvent[] = []
  const hosted = new Map<number, { tool: HostedTool; id: string; arguments: string }>()
  let finish: Round['finish'] | undefined
  let [input, usage]: [number, Usage | undefined] = [0, undefined]
  for (const event of events) {
    if (event.type === 'tool_call') {
      const tool = tools.find((name) => name === event.name)
      if (tool) hosted.set(event.call, { tool, id: event.id || `call_${prefix}_${event.call}`, arguments: '' })
      else functions.push(event)
    } else if (event.type === 'tool_arguments') {
      const call = hosted.get(event.call)
      if (call) call.arguments += event.text
      else functions.push(event)
    } else if (event.type === 'finish') finish = event
    else if (event.type === 'usage') usage = event.usage
    else said.push(event)
    if (event.type === 'start') input = event.input_tokens
  }
  if (!finish) throw new ServiceError('upstream_error', 'The model stopped without finishing its answer.')
  usage ??= { input_tokens: input, output_tokens: 0 }
  return { said, hosted: [...hosted.values()], functions, finish, usage, parts: partsOf(said) }
}

/** The request of a round in which the model must call no hosted tool. */
export function withoutHosted(request: GenerateRequest): GenerateRequest {
  const hosted: readonly string[] = request.hosted?.tools ?? []
  const functions = request.tools.map(({ name }) => name).filter((name) => !hosted.includes(name))
  // The tools stay declared: servers refuse conversations with calls of undeclared tools.
  if (functions.length === 0) return { ...request, tool_choice: { type: 'none' }, allowed_tools: undefined }
  return { ...request, tool_choice: { type: 'auto' }, allowed_tools: functions }
}

/** Usage of an answer as the sum of its rounds. The input of each round includes the output of the rounds before. */
export function sumOf(a: Usage, b: Usage): Usage {
  const sum = (name: 'cached_tokens' | 'cache_write_tokens' | 'reasoning_tokens') =>
    a[name] === undefined && b[name] === undefined ? {} : { [name]: (a[name] ?? 0) + (b[name] ?? 0) }
  return {
    input_tokens: a.input_tokens + b.input_tokens,
    output_tokens: a.output_tokens + b.output_tokens,
    ...sum('cached_tokens'),
    ...sum('cache_write_tokens'),
    ...sum('reasoning_tokens'),
    ...((a.estimated || b.estimated) && { estimated: true }),
  }
}

function partsOf(said: readonly GenerateEvent[]): Part[] {
  const parts: Part[] = []
  for (const event of said) {
    const last = parts.at(-1)
    if (event.type === 'text' || event.type === 'refusal') {
      if (last?.type === 'text') last.text += event.text
      else if (event.text !== '') parts.push({ type: 'text', text: event.text })
    } else if (event.type === 'reasoning') {
      const { text, signature, redacted } = event
      const isOpen = last?.type === 'reasoning' && last.signature === undefined && last.redacted === undefined
      if (isOpen && redacted === undefined) {
        last.text += text
        if (signature !== undefined) last.signature = signature
      } else parts.push({ type: 'reasoning', text, ...(signature && { signature }), ...(redacted && { redacted }) })
    }
  }
  return parts
}
