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
 * Answers in which the service runs tools itself (docs/design.md, Hosted tools): what the model says in one round is a step, each
 * call of a tool a child of its pool, and what callers are told of both is told once, whichever attempt comes to it.
 */

/** Rounds of one answer: a model that goes on calling tools comes to an end. */
const ROUNDS_MAX = 20
/** Calls that are run of one round; the others are answered with a refusal. */
const CALLS_AT_ONCE = 16

/** How a model is asked. */
export type Generate = (request: GenerateRequest, context: AttemptContext) => AsyncIterable<GenerateEvent>

const RUNNERS: Readonly<Record<HostedTool, HostedRunner>> = {
  code_interpreter: codeInterpreter,
  web_search: searching,
  file_search: searching,
}

/**
 * Asks a model, runs the tools that it calls, and asks again with what came of them, until it has answered, calls a function of
 * its caller, or has used up its calls: then it is asked once more, without tools.
 *
 * @throws ServiceError What the model failed with; `timeout` when its time was over while a tool ran
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

/** A call that has an item, and is run unless there is a problem with it. */
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

  /** @returns What all rounds have used */
  async run(): Promise<Usage> {
    for (let at = 0; ; at++) {
      const isOver = this.#runs >= this.#callsMax || at >= ROUNDS_MAX
      const { round, untold } = await this.#ask(at, isOver)
      this.#usage = sumOf(this.#usage, round.usage)
      const isAnswer = round.hosted.length === 0 || round.finish.reason !== 'tool_calls'
      if (isAnswer || isOver) {
        await this.#composition.publish(`round.${at}`, [...untold, ...round.functions, finishOf(round, isAnswer)])
        return this.#usage
      }
      const runs = this.#take(round.hosted)
      await this.#composition.publish(`round.${at}`, [...untold, ...runs.map(toldCall)])
      const results = await this.#results(runs)
      const told = runs.map(({ run }, n) => toldResult(run, results[n] as HostedResult))
      if (round.functions.length > 0) {
        await this.#composition.publish(`results.${at}`, [...told, ...round.functions, round.finish])
        return this.#usage
      }
      await this.#composition.publish(`results.${at}`, told)
      this.#goOn(round, runs, results)
    }
  }

  async #ask(at: number, isOver: boolean): Promise<{ round: Round; untold: readonly GenerateEvent[] }> {
    const request = isOver ? withoutHosted(this.#request) : this.#request
    const told = await ResumableStream.begin(this.#composition, at, this.#pace)
    const events = await this.#composition.step('generate', { round: at }, async (signal) => {
      const spoken = new Spoken()
      for await (const event of this.#generate(request, { ...this.#context, signal })) {
        spoken.push(event)
        // Who waits for the whole answer is told nothing before.
        if (request.stream) await told.hear(event)
      }
      // An engine that ends quietly when aborted has not completed.
      signal.throwIfAborted()
      return { value: spoken.takeAll() }
    })
    const round = readRound(events, this.#tools, `${at}`)
    // The answer has begun once.
    const said = at === 0 ? round.said : round.said.filter(({ type }) => type !== 'start')
    return { round, untold: told.rest(said) }
  }

  /** The calls that are run: all that have an item. */
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
      if (!end) throw new ServiceError('timeout', 'The time of the response was over while a tool ran.')
      if (end.state !== 'completed') return notRun(end.error.message)
      return RUNNERS[each.call.tool].result(end)
    })
  }

  #submit({ call: { tool }, run, input }: Run): Promise<string> {
    const child = RUNNERS[tool].child(input, tool, this.#request, this.#settings)
    return this.#composition.submit({ key: `hosted.${run}`, ...child })
  }

  /** The next round reads what was called, and what came of it. */
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
      // What was forced has happened; forced again it would never end.
      tool_choice: isForced ? { type: 'auto' } : tool_choice,
    }
  }
}

/** A model that still calls tools when it was offered none has no answer. */
function finishOf({ finish }: Round, isAnswer: boolean): GenerateEvent {
  return isAnswer ? finish : { ...finish, reason: 'length', calls_full: true }
}

function toldCall({ call: { tool, id }, run, input }: Run): GenerateEvent {
  return { type: 'hosted_call', choice: 0, run, tool, id, input }
}

function toldResult(run: number, { status, output }: HostedResult): GenerateEvent {
  return { type: 'hosted_result', choice: 0, run, status, output }
}
