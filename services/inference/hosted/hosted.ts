import type { GenerateEvent, GenerateRequest, HostedTool, Part, Turn, Usage } from '#schemas/kinds/generate.ts'
import { QUERY_CHARS_MAX, type SearchRequest, SearchResults } from '#schemas/kinds/search.ts'
import { type Composition, STEP_BYTES_MAX } from '#shared/kinds/composition.ts'
import { mergeGenerateEvents } from '#shared/kinds/generate/generate.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { codeInterpreter } from './code-interpreter.ts'
import { type PieceCount, ResumableStream } from './resumable-stream.ts'
import {
  type HostedInput,
  type HostedResult,
  type HostedRunner,
  type HostedSettings,
  notRun,
  textField,
} from './tool.ts'

const RESULTS_USUAL = 8

/** Maximum time of a search in ms, including reading the pages found. */
const SEARCH_MS_MAX = 60_000

const READ_CHARS_MAX = 32 * 1024
const Found = tolerant(SearchResults)

/** The `web_search` and `file_search` tools, run by the research pool. */
const searching: HostedRunner = {
  read(text) {
    const query = textField(text, 'query')?.trim()
    if (!query) return { input: query ?? text, problem: 'The arguments must be a JSON object with the string "query".' }
    return { input: query.slice(0, QUERY_CHARS_MAX).toWellFormed() }
  },
  child(query, tool, { hosted }: GenerateRequest) {
    const search = hosted?.search
    const limits = { limit: search?.results_max ?? RESULTS_USUAL, domains: search?.domains ?? { allow: [], deny: [] } }
    const body: SearchRequest = { query, in: tool === 'web_search' ? 'web' : 'documents', ...limits }
    // No endpoint offers a search alone. The job has the endpoint of deep research, because the pool and models of deep research run the searches.
    const endpoint = '/v1/deep-research'
    const model = search?.model ?? ''
    return { endpoint, kind: 'search', pool: 'research', model, body, deadlineInMs: SEARCH_MS_MAX }
  },
  result({ result }) {
    const read = Found.safeParse(result)
    if (!read.success) return notRun('The result of the tool could not be read.')
    const { results } = read.data
    const entries = results.map(({ url, title, excerpt, date }, at) => {
      return `[${at + 1}] ${title}\n${url}${date === undefined ? '' : ` (${date})`}\n${excerpt}`
    })
    const text = entries.join('\n\n') || 'Nothing was found.'
    return { status: 'completed', output: results, text: text.slice(0, READ_CHARS_MAX).toWellFormed() }
  },
}

/**
 * Answers with hosted tools, which the service runs itself (docs/internals/design.md, Composed jobs). An answer takes several rounds. A
 * round is one run of the model, which ends with the answer or with tool calls. The results of these calls start the next round.
 *
 * Each round is a recorded step, and each tool call is a child job of its pool. Each event for callers is published under a key. If an
 * attempt repeats a round, then its events have keys that are already published, and callers receive no event twice.
 */

/** Maximum runs of the model per answer, because some models would call tools forever. */
const ROUNDS_MAX = 20
/** Maximum tool calls that run per round. For further calls, the model receives an error as their result. */
const CALLS_IN_FLIGHT_MAX = 16

export type Generate = (request: GenerateRequest, context: AttemptContext) => AsyncIterable<GenerateEvent>

const RUNNERS: Readonly<Record<HostedTool, HostedRunner>> = {
  code_interpreter: codeInterpreter,
  web_search: searching,
  file_search: searching,
}

/**
 * Alternates between the model and its tool calls until the model answers or calls a function of its caller. After the last permitted call, the model
 * runs once more, without tools.
 *
 * @throws ServiceError The model's error. `timeout` if the deadline passed while a tool ran
 */
export async function* generateHosted(
  generate: Generate,
  request: GenerateRequest,
  context: AttemptContext,
  settings: HostedSettings,
): AsyncGenerator<GenerateEvent> {
  const { composition } = context
  if (!composition)
    throw new ServiceError(
      'internal_error',
      'Hosted tools run only in durable jobs, and this call is not a durable job.',
    )
  yield { type: 'usage', usage: await new HostedAnswer(generate, request, context, composition, settings).run() }
}

/**
 * A tool call of the model. `run` is its number within the answer. If `problem` is set, then the tool does not run, and the model receives
 * the problem.
 */
interface Run extends HostedInput {
  readonly call: HostedCall
  readonly run: number
}

class HostedAnswer {
  readonly #generate: Generate
  readonly #context: AttemptContext
  readonly #composition: Composition
  readonly #settings: HostedSettings
  readonly #tools: readonly HostedTool[]
  readonly #callsMax: number
  #request: GenerateRequest
  #usage: Usage = { input_tokens: 0, output_tokens: 0 }
  #runs = 0
  readonly #pace: PieceCount = { pieces: 0 }

  constructor(
    generate: Generate,
    request: GenerateRequest,
    context: AttemptContext,
    composition: Composition,
    settings: HostedSettings,
  ) {
    this.#generate = generate
    this.#request = request
    this.#context = context
    this.#composition = composition
    this.#settings = settings
    this.#tools = request.hosted?.tools ?? []
    this.#callsMax = request.hosted?.calls_max ?? Number.POSITIVE_INFINITY
  }

  async run(): Promise<Usage> {
    for (let at = 0; ; at++) {
      const isOver = this.#runs >= this.#callsMax || at >= ROUNDS_MAX
      const { round, unpublished } = await this.#ask(at, isOver)
      this.#usage = sumOf(this.#usage, round.usage)
      const isAnswer = round.hosted.length === 0 || round.finish.reason !== 'tool_calls'
      if (isAnswer || isOver) {
        await this.#composition.publish(`round.${at}`, [...unpublished, ...round.functions, finishOf(round, isAnswer)])
        return this.#usage
      }
      const runs = this.#take(round.hosted)
      await this.#composition.publish(`round.${at}`, [...unpublished, ...runs.map(callEvent)])
      const results = await this.#results(runs)
      const published = runs.map(({ run }, n) => resultEvent(run, results[n] as HostedResult))
      if (round.functions.length > 0) {
        await this.#composition.publish(`results.${at}`, [...published, ...round.functions, round.finish])
        return this.#usage
      }
      await this.#composition.publish(`results.${at}`, published)
      this.#continue(round, runs, results)
    }
  }

  async #ask(at: number, isOver: boolean): Promise<{ round: Round; unpublished: readonly GenerateEvent[] }> {
    const request = isOver ? withoutHosted(this.#request) : this.#request
    const published = await ResumableStream.begin(this.#composition, at, this.#pace)
    const events = await this.#composition.step(
      'generate',
      { round: at },
      async (signal, traceparent = this.#context.traceparent) => {
        const spoken = new OutputBuffer()
        for await (const event of this.#generate(request, { ...this.#context, signal, traceparent })) {
          spoken.push(event)
          // Without `stream`, the caller receives the whole answer at once, so no event is published early.
          if (request.stream) await published.receive(event)
        }
        // After an abort, an engine may end without an error, although its answer is incomplete. The reason of the abort is then thrown.
        signal.throwIfAborted()
        return { value: spoken.takeAll() }
      },
    )
    const round = readRound(events, this.#tools, `${at}`)
    // An answer has one start event, so those of later rounds are dropped.
    const said = at === 0 ? round.text : round.text.filter(({ type }) => type !== 'start')
    return { round, unpublished: published.rest(said) }
  }

  /** Selects the calls to run, within the limits per round and per answer. Calls beyond the limits get no output item. */
  #take(calls: readonly HostedCall[]): Run[] {
    const room = Math.min(this.#callsMax - this.#runs, CALLS_IN_FLIGHT_MAX)
    return calls.slice(0, room).map((call) => {
      return { call, run: this.#runs++, ...RUNNERS[call.tool].read(call.arguments) }
    })
  }

  async #results(runs: readonly Run[]): Promise<HostedResult[]> {
    const children = runs.filter(({ problem }) => problem === undefined)
    const ids = await Promise.all(children.map((each) => this.#submit(each)))
    const ends = ids.length === 0 ? [] : await this.#composition.waitFor(ids)
    return runs.map((each) => {
      if (each.problem !== undefined) return notRun(each.problem)
      const end = ends[children.indexOf(each)]
      if (!end) throw new ServiceError('timeout', 'The response timed out while a tool ran.')
      if (end.state !== 'completed') return notRun(end.error.message)
      return RUNNERS[each.call.tool].result(end)
    })
  }

  #submit({ call: { tool }, run, input }: Run): Promise<string> {
    const child = RUNNERS[tool].child(input, tool, this.#request, this.#settings)
    return this.#composition.submit({ key: `hosted.${run}`, ...child })
  }

  #continue(round: Round, runs: readonly Run[], results: readonly HostedResult[]): void {
    const calls = round.hosted.map(({ id, tool: name, arguments: text }) => {
      return { type: 'tool_call' as const, id, name, arguments: text }
    })
    const answers = round.hosted.map((call): Turn => {
      const result = results[runs.findIndex((run) => run.call === call)]
      const text = result?.text ?? 'Error: this call was not run, because the maximum number of tool calls was reached.'
      return {
        role: 'tool',
        call_id: call.id,
        parts: [{ type: 'text', text }],
        is_error: result?.status !== 'completed',
      }
    })
    const { turns, tool_choice } = this.#request
    const isForced = tool_choice?.type === 'required' || tool_choice?.type === 'tool'
    this.#request = {
      ...this.#request,
      turns: [...turns, { role: 'assistant', parts: [...round.parts, ...calls] }, ...answers],
      // The forced call was made in this round. With an unchanged tool choice, the model would be forced to call again in each round.
      tool_choice: isForced ? { type: 'auto' } : tool_choice,
    }
  }
}

/**
 * Returns the finish event of an answer. The last round offers no hosted tools. If the model calls a hosted tool anyway, then there is no answer, and
 * the reason is `length`.
 */
function finishOf({ finish }: Round, isAnswer: boolean): GenerateEvent {
  return isAnswer ? finish : { ...finish, reason: 'length', calls_full: true }
}

function callEvent({ call: { tool, id }, run, input }: Run): GenerateEvent {
  return { type: 'hosted_call', choice: 0, run, tool, id, input }
}

function resultEvent(run: number, { status, output }: HostedResult): GenerateEvent {
  return { type: 'hosted_result', choice: 0, run, status, output }
}

/** Buffers the output of one run of the model. The whole output is stored as one step, so output larger than a step is rejected. */
export class OutputBuffer {
  readonly #events = new EventBuffer(mergeGenerateEvents)
  #bytes = 0

  push(event: GenerateEvent): void {
    this.#events.push(event)
    const hasOnlyText = 'text' in event && !(event.type === 'text' && event.logprobs)
    this.#bytes += bytesOf(hasOnlyText ? event.text : event)
    if (this.#bytes > STEP_BYTES_MAX) throw tooLarge()
  }

  takeAll(): GenerateEvent[] {
    const events = this.#events.takeAll()
    if (bytesOf(events) > STEP_BYTES_MAX) throw tooLarge()
    return events
  }
}

function bytesOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value))
}

function tooLarge(): ServiceError {
  const message = `The model returned more than ${STEP_BYTES_MAX} bytes in one model call of a response with hosted tools. Set a lower 'max_output_tokens', or omit log probabilities.`
  return new ServiceError('answer_too_large', message)
}

interface HostedCall {
  readonly tool: HostedTool
  readonly id: string
  readonly arguments: string
}

interface Round {
  /** Text, refusals and reasoning of one run of the model. The first run of an answer also has the start event. */
  readonly text: readonly GenerateEvent[]
  readonly hosted: readonly HostedCall[]
  readonly functions: readonly GenerateEvent[]
  readonly finish: Extract<GenerateEvent, { type: 'finish' }>
  readonly usage: Usage
  /** Text and reasoning as parts of the conversation for the next round. Calls are added separately. */
  readonly parts: readonly Part[]
}

/**
 * Divides the events of a round by type.
 *
 * @param prefix Prefix of generated ids, for calls whose engine sent no id.
 * @throws ServiceError `upstream_error` if the engine did not finish
 */
function readRound(events: readonly GenerateEvent[], tools: readonly HostedTool[], prefix: string): Round {
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
  return { text: said, hosted: [...hosted.values()], functions, finish, usage, parts: partsOf(said) }
}

function withoutHosted(request: GenerateRequest): GenerateRequest {
  const hosted: readonly string[] = request.hosted?.tools ?? []
  const functions = request.tools.map(({ name }) => name).filter((name) => !hosted.includes(name))
  // The tools stay declared, because servers refuse conversations with calls of undeclared tools.
  if (functions.length === 0) return { ...request, tool_choice: { type: 'none' }, allowed_tools: undefined }
  return { ...request, tool_choice: { type: 'auto' }, allowed_tools: functions }
}

function sumOf(a: Usage, b: Usage): Usage {
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
