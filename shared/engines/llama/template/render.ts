import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja'
import {
  type Conversation,
  Marks,
  type Piece,
  type TemplateForms,
  type TemplateMessage,
  type TemplateSource,
} from './conversation.ts'
import { findForms, foldSystem, mergeTurns, writeMessage, writeTools } from './probe.ts'

/**
 * Filters that receive an empty text for an undefined value. Filters of {@link KEPT} receive the undefined value, and all other filters an empty
 * list.
 */
const TEXT_FILTERS = new Set(['trim', 'upper', 'lower', 'title', 'capitalize', 'string', 'replace', 'indent', 'safe'])
const KEPT = new Set(['default', 'd', 'tojson'])

const CHARS_MAX = 64_000_000
const RANGE_MAX = 1_000_000
const REASON_CHARS_MAX = 300

/** Thrown if the template rejected a conversation by `raise_exception`. The message is that of the template. */
export class TemplateRefusal extends Error {}

/**
 * A chat template in the language Jinja, rendered as by transformers and llama.cpp. The template determines the default system turn, the tokens
 * that mark turns, and the format of tools and tool calls.
 *
 * A template is a program that came with the model, so it runs in a thread (thread.ts).
 */
export class ChatTemplate {
  readonly forms: TemplateForms
  readonly #program: ReturnType<typeof parseLenient>
  readonly #marks: Marks
  readonly #tokens: { readonly bos_token: string; readonly eos_token: string }

  constructor({ source, bosToken, eosToken, marks }: TemplateSource) {
    this.#program = parseLenient(source)
    this.#marks = new Marks(marks)
    this.#tokens = { bos_token: bosToken, eos_token: eosToken }
    this.forms = findForms((variables) => this.#draw(variables), this.#marks)
  }

  /**
   * Returns the prompt of a conversation. The prompt ends with the marker that begins the answer of the assistant.
   *
   * @throws TemplateRefusal if the template rejects every arrangement of the messages that is tried
   */
  render(conversation: Conversation): Piece[] {
    const messages = foldSystem(conversation.messages, this.forms.system)
    const tools = writeTools(conversation)
    const write = (turns: readonly TemplateMessage[]) => turns.map((turn) => writeMessage(turn, this.forms))
    const guard = this.#marks.escapeFor([write(messages), tools, conversation.prefill])
    if (guard === undefined) throw new TemplateRefusal('The messages contain every noncharacter of U+FDD0 to U+FDEF.')
    const draw = (turns: readonly TemplateMessage[]) =>
      this.#draw({
        messages: this.#marks.escapeAll(write(turns), guard),
        tools: tools.length > 0 ? this.#marks.escapeAll(tools, guard) : this.forms.noTools,
        add_generation_prompt: true,
        ...(conversation.thinks !== undefined && { enable_thinking: conversation.thinks }),
      })
    const text = firstOf(
      () => draw(messages),
      // The second attempt merges adjacent turns of one role, because some templates require that user and assistant
      // alternate.
      () => draw(mergeTurns(foldSystem(messages, this.forms.system === 'none' ? 'none' : 'first'))),
    )
    return this.#marks.split(text + this.#marks.escape(conversation.prefill, guard), guard)
  }

  #draw(variables: Readonly<Record<string, unknown>>): string {
    const environment = new Environment()
    const all = { ...GLOBALS, ...this.#tokens, documents: null, ...variables }
    for (const [name, value] of Object.entries(all)) environment.set(name, value)
    const { value } = new Interpreter(environment).run(this.#program)
    if (typeof value !== 'string') throw new Error('The template renders no text.')
    if (value.length > CHARS_MAX) throw new Error('The rendered prompt is too long.')
    return value
  }
}

function firstOf<T>(first: () => T, second: () => T): T {
  try {
    return first()
  } catch (error) {
    try {
      return second()
    } catch {
      throw new TemplateRefusal(reasonOf(error), { cause: error })
    }
  }
}

export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  return message.replaceAll(/\s+/g, ' ').slice(0, REASON_CHARS_MAX)
}

const GLOBALS: Readonly<Record<string, unknown>> = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (reason: unknown): never => {
    throw new TemplateRefusal(String(reason))
  },
  range,
  strftime_now: formatNow,
}

function range(first: number, end?: number, step = 1): number[] {
  const [from, to] = end === undefined ? [0, first] : [first, end]
  const length = Math.max(0, Math.ceil((to - from) / step))
  if (!(length <= RANGE_MAX)) throw new Error(`A range in the chat template can have at most ${RANGE_MAX} numbers.`)
  return Array.from({ length }, (_, i) => from + i * step)
}

const MONTHS = 'January February March April May June July August September October November December'.split(' ')
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ')

function formatNow(format: string): string {
  const now = new Date()
  const two = (value: number) => String(value).padStart(2, '0')
  const month = MONTHS[now.getMonth()] ?? ''
  const day = DAYS[now.getDay()] ?? ''
  const parts: Readonly<Record<string, string>> = {
    Y: String(now.getFullYear()),
    y: two(now.getFullYear() % 100),
    m: two(now.getMonth() + 1),
    d: two(now.getDate()),
    H: two(now.getHours()),
    I: two(((now.getHours() + 11) % 12) + 1),
    M: two(now.getMinutes()),
    S: two(now.getSeconds()),
    p: now.getHours() < 12 ? 'AM' : 'PM',
    B: month,
    b: month.slice(0, 3),
    A: day,
    a: day.slice(0, 3),
    '%': '%',
  }
  return format.replace(/%([a-zA-Z%])/g, (whole, letter: string) => parts[letter] ?? whole)
}

type Program = ReturnType<typeof parse>

interface Node {
  readonly type: string
  [field: string]: unknown
}

/**
 * Parses a template so that undefined values in loops and filters count as empty, as in Jinja. For example, `for call in
 * message.tool_calls` runs zero times, and `tool.description | trim` is an empty text. The JavaScript library throws instead.
 *
 * Each name in these places is therefore replaced with `name if name is defined else []` in the parsed program.
 */
function parseLenient(source: string): Program {
  const program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }))
  visit(program)
  return program
}

function visit(value: unknown): void {
  if (Array.isArray(value)) for (const one of value) visit(one)
  if (value instanceof Map) for (const [key, one] of value) visit([key, one])
  if (!isNode(value)) return
  for (const field of Object.values(value)) visit(field)
  if (value.type === 'For') relax(value, 'iterable', '[]')
  if (value.type === 'SelectExpression') relax(value, 'lhs', '[]')
  if (value.type === 'FilterExpression' && !KEPT.has(filterOf(value))) {
    relax(value, 'operand', TEXT_FILTERS.has(filterOf(value)) ? "''" : '[]')
  }
}

function relax(node: Node, field: string, empty: string): void {
  const value = node[field]
  if (!isNode(value) || (value.type !== 'Identifier' && value.type !== 'MemberExpression')) return
  const [choice] = parse(tokenize(`{{ x if x is defined else ${empty} }}`)).body as unknown as Node[]
  if (!choice || !isNode(choice.condition))
    throw new Error('The library @huggingface/jinja did not parse a conditional expression.')
  choice.condition.operand = value
  choice.trueExpr = value
  node[field] = choice
}

function filterOf({ filter }: Node): string {
  if (!isNode(filter)) return ''
  const name = filter.type === 'CallExpression' ? filter.callee : filter
  return isNode(name) ? String(name.value) : ''
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string'
}
