import type { GenerateEvent, GenerateRequest, HostedTool, Turn, Usage } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import type { Composition } from '#shared/kinds/composition.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { codeInterpreter } from './code-interpreter.ts'
import { type DeltaInterval, ResumableStream } from './resumable-stream.ts'
import { type HostedCall, type Round, readRound, sumOf, withoutHosted } from './round.ts'
import { searching } from './search.ts'
import { Spoken } from './spoken.ts'
import { type HostedInput, type HostedResult, type HostedRunner, type HostedSettings, notRun } from './tool.ts'

/**
 * Answers whose tools the service runs itself (docs/internals/design.md, Composed jobs).
 *
 * Each round of the model is a recorded step, and each tool call is a child job of its pool. Events for callers are published once per key,
 * so an attempt that repeats a round publishes nothing twice.
 */

/** Maximum rounds of one answer, for models that would call tools forever. */
const ROUNDS_MAX = 20
/** Maximum tool calls that run per round. Further calls get a refusal as their result. */
const CALLS_AT_ONCE = 16

export type Generate = (request: GenerateRequest, context: AttemptContext) => AsyncIterable<GenerateEvent>

const RUNNERS: Readonly<Record<HostedTool, HostedRunner>> = {
  code_interpreter: codeInterpreter,
  web_search: searching,
  file_search: searching,
}

/**
 * Alternates between the model and its tool calls until the model answers or calls a function of its caller. After the last permitted call
 * the model runs once more, without tools.
 *
 * @throws ServiceError The model's error; `timeout` if the deadline passed while a tool ran
 */
export async function* generateHosted(
  generate: Generate,
  request: GenerateRequest,
  context: AttemptContext,
  settings: HostedSettings,
): AsyncGenerator<GenerateEvent> {
  const { composition } = context
  if (!composition) throw new ServiceError('internal_error', 'Tools that the service runs need a durable job.')
  yield { type: 'usage', usage: await new HostedAnswer(generate, request, context, composition, settings).run() }
}

/** A tool call with its output item. The call runs unless its arguments have a problem. */
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
  readonly #pace: DeltaInterval = { pieces: 0 }

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

  /** @returns Usage of all rounds */
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
      this.#goOn(round, runs, results)
    }
  }

  async #ask(at: number, isOver: boolean): Promise<{ round: Round; unpublished: readonly GenerateEvent[] }> {
    const request = isOver ? withoutHosted(this.#request) : this.#request
    const published = await ResumableStream.begin(this.#composition, at, this.#pace)
    const events = await this.#composition.step('generate', { round: at }, async (signal) => {
      const spoken = new Spoken()
      for await (const event of this.#generate(request, { ...this.#context, signal })) {
        spoken.push(event)
        // Without `stream` the caller receives the whole answer at once, so nothing is published early.
        if (request.stream) await published.hear(event)
      }
      // An engine that returns without an error when aborted has not completed its answer.
      signal.throwIfAborted()
      return { value: spoken.takeAll() }
    })
    const round = readRound(events, this.#tools, `${at}`)
    // Only the first round emits a start event.
    const said = at === 0 ? round.said : round.said.filter(({ type }) => type !== 'start')
    return { round, unpublished: published.rest(said) }
  }

  /** The calls to run, within the limits per round and per answer. Only these have an output item. */
  #take(calls: readonly HostedCall[]): Run[] {
    const room = Math.min(this.#callsMax - this.#runs, CALLS_AT_ONCE)
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

  /** Appends the calls and their results to the conversation of the next round. */
  #goOn(round: Round, runs: readonly Run[], results: readonly HostedResult[]): void {
    const calls = round.hosted.map(({ id, tool: name, arguments: text }) => {
      return { type: 'tool_call' as const, id, name, arguments: text }
    })
    const answers = round.hosted.map((call): Turn => {
      const result = results[runs.findIndex((run) => run.call === call)]
      const text = result?.text ?? 'Error: this call was not run. No more calls of tools are run now.'
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
      // The forced call has happened. A tool choice that forces it again would never end.
      tool_choice: isForced ? { type: 'auto' } : tool_choice,
    }
  }
}

/** If the model still calls tools although none were offered, then there is no answer: finish as `length`. */
function finishOf({ finish }: Round, isAnswer: boolean): GenerateEvent {
  return isAnswer ? finish : { ...finish, reason: 'length', calls_full: true }
}

function callEvent({ call: { tool, id }, run, input }: Run): GenerateEvent {
  return { type: 'hosted_call', choice: 0, run, tool, id, input }
}

function resultEvent(run: number, { status, output }: HostedResult): GenerateEvent {
  return { type: 'hosted_result', choice: 0, run, status, output }
}
