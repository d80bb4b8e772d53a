import { createHash } from 'node:crypto'
import type { Conversation, Marks, Piece, TemplateForms, TemplateMessage, ToolForms } from './conversation.ts'

type Draw = (variables: Readonly<Record<string, unknown>>) => string

const [USER, SYSTEM, ANSWER, RESULT] = ['needleuser', 'needlesystem', 'needleanswer', 'needleresult']
const TOOL = 'needletool'
const ARGUMENT = 'needleargument'
/** Escape character for the conversations of this file, none of which contains it. */
const NO_ESCAPE = '\ufdd0'
const ARGUMENTS = `{"${ARGUMENT}": "needlevalue"}`

/**
 * Detects the capabilities of a template, because the model file does not declare them. Conversations of unique words are rendered. A capability
 * exists if the words appear in the output. A template may throw for a system turn or drop it, and both mean that system turns are unsupported.
 */
export function findForms(draw: Draw, marks: Marks): TemplateForms {
  const { content, noTools } = findContent(draw)
  const plain = (messages: readonly TemplateMessage[], isOpen = true) =>
    draw({
      messages: messages.map((message) => writeMessage(message, { content, tools: undefined })),
      tools: noTools,
      add_generation_prompt: isOpen,
    })
  return {
    content,
    noTools,
    system: findSystem(plain),
    tools: findTools(draw, content, marks),
    endMark: findEndMark(plain, marks),
  }
}

function findContent(draw: Draw): Pick<TemplateForms, 'content' | 'noTools'> {
  let problem: unknown
  for (const noTools of [null, []] as const) {
    for (const content of ['text', 'parts'] as const) {
      try {
        const messages = [writeMessage(user(USER), { content, tools: undefined })]
        const text = draw({ messages, tools: noTools, add_generation_prompt: true })
        if (text.includes(USER)) return { content, noTools }
      } catch (error) {
        problem ??= error
      }
    }
  }
  throw problem ?? new Error('The template does not render user messages.')
}

function findSystem(plain: (messages: readonly TemplateMessage[]) => string): TemplateForms['system'] {
  const system: TemplateMessage = { role: 'system', content: SYSTEM }
  const holds = (...messages: TemplateMessage[]) => attempt(() => plain(messages))?.includes(SYSTEM) ?? false
  if (!holds(system, user(USER))) return 'none'
  const other: TemplateMessage = { role: 'system', content: 'Other.' }
  return holds(other, user(USER), { role: 'assistant', content: ANSWER }, system, user(USER)) ? 'any' : 'first'
}

function findTools(draw: Draw, content: TemplateForms['content'], marks: Marks): ToolForms | undefined {
  for (const noContent of ['', null] as const) {
    for (const args of ['object', 'text'] as const) {
      for (const ids of ['any', 'nine'] as const) {
        const tools = { arguments: args, ids, noContent }
        const write = (messages: readonly TemplateMessage[], isOpen = true) =>
          draw({
            messages: messages.map((message) => writeMessage(message, { content, tools })),
            tools: writeTools({ tools: [TOOL_OFFERED] }),
            add_generation_prompt: isOpen,
          })
        const offered = attempt(() => write([user(USER)]))
        if (!offered?.includes(TOOL)) continue
        const history = attempt(() => write([user(USER), CALL, ANSWERED]))
        if (!history?.includes(RESULT) || !/"needleargument": ?"needlevalue"/.test(history)) continue
        // The rendered conversation has a tool result after the call. If the call came last, then some templates would write an empty reasoning block
        // before it. Such a block is no part of the form of a call.
        const call = attempt(() => findCall(offered, write([user(USER)], false), history))
        if (!call || call.before.trim() === '') continue
        return { ...tools, before: split(call.before, marks), between: split(call.between, marks) }
      }
    }
  }
  return undefined
}

const TOOL_OFFERED = {
  name: TOOL,
  description: 'A tool.',
  parameters: { type: 'object', properties: { [ARGUMENT]: { type: 'string' } }, required: [ARGUMENT] },
}
const CALL: TemplateMessage = {
  role: 'assistant',
  content: '',
  calls: [{ id: 'call_needle', name: TOOL, arguments: ARGUMENTS }],
}
const ANSWERED: TemplateMessage = { role: 'tool', content: RESULT, callId: 'call_needle', name: TOOL }

/**
 * Derives the text of a call from three rendered prompts. `open` ends with the start of the answer, `closed` has no such start, and `called` contains
 * a call and its result.
 */
function findCall(
  open: string,
  closed: string,
  called: string,
): { readonly before: string; readonly between: string } | undefined {
  if (!called.startsWith(closed)) return undefined
  // The prompt `open` may end with a reasoning block that is not repeated in `called`. The opening is therefore only the
  // common beginning of both prompts.
  const opening = commonPrefix(open.startsWith(closed) ? open.slice(closed.length) : '', called.slice(closed.length))
  const call = called.slice(closed.length + opening)
  const name = call.indexOf(TOOL)
  const end = name + TOOL.length
  const args = call.slice(end).search(/\{\s*"needleargument"/)
  if (name < 0 || args < 0) return undefined
  // The model generates the space before the arguments, because one token often contains both the space and the first character.
  return { before: call.slice(0, name), between: call.slice(end, end + args).trimEnd() }
}

function findEndMark(
  plain: (messages: readonly TemplateMessage[], isOpen: boolean) => string,
  marks: Marks,
): string | undefined {
  const text = attempt(() => plain([user(USER), { role: 'assistant', content: ANSWER }], false))
  const at = text?.lastIndexOf(ANSWER) ?? -1
  if (text === undefined || at < 0) return undefined
  const [first] = split(text.slice(at + ANSWER.length), marks)
  const [line] = typeof first === 'string' ? first.trim().split('\n') : []
  return line === '' ? undefined : line
}

function commonPrefix(a: string, b: string): number {
  let length = 0
  while (length < a.length && a[length] === b[length]) length++
  return length === a.length ? length : a.slice(0, length).search(/[^\n>\]]*$/)
}

function split(text: string, marks: Marks): Piece[] {
  return marks.split(text, NO_ESCAPE)
}

function user(content: string): TemplateMessage {
  return { role: 'user', content }
}

function attempt<T>(run: () => T): T | undefined {
  try {
    return run()
  } catch {
    return undefined
  }
}

const BETWEEN_TURNS = '\n\n'

/** Moves system turns that the template would drop or reject into the following user turn. */
export function foldSystem(messages: readonly TemplateMessage[], allowed: TemplateForms['system']): TemplateMessage[] {
  if (allowed === 'any') return [...messages]
  const folded: TemplateMessage[] = []
  const first = messages.findIndex(({ role }) => role !== 'system')
  const leading = messages.slice(0, first < 0 ? messages.length : first)
  let waiting: string[] = []
  if (allowed === 'first' && leading.length > 0) folded.push({ role: 'system', content: joined(leading) })
  for (const message of allowed === 'first' ? messages.slice(leading.length) : messages) {
    if (message.role === 'system') {
      waiting.push(message.content)
      continue
    }
    if (waiting.length === 0) {
      folded.push(message)
    } else if (message.role === 'user') {
      folded.push({ ...message, content: [...waiting, message.content].join(BETWEEN_TURNS) })
    } else {
      folded.push({ role: 'user', content: waiting.join(BETWEEN_TURNS) }, message)
    }
    waiting = []
  }
  if (waiting.length > 0) folded.push({ role: 'user', content: waiting.join(BETWEEN_TURNS) })
  return folded
}

export function mergeTurns(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const merged: TemplateMessage[] = []
  for (const message of messages) {
    const before = merged.at(-1)
    const isMergeable = before?.role === message.role && message.role !== 'tool' && !before.calls
    if (before && isMergeable) merged[merged.length - 1] = { ...message, content: joined([before, message]) }
    else merged.push(message)
  }
  return merged
}

function joined(messages: readonly TemplateMessage[]): string {
  return messages.map(({ content }) => content).join(BETWEEN_TURNS)
}

interface MessageForms {
  readonly content: TemplateForms['content']
  readonly tools: Pick<ToolForms, 'arguments' | 'ids' | 'noContent'> | undefined
}

export function writeMessage(message: TemplateMessage, forms: MessageForms): object {
  const { role, content, reasoning, calls, callId, name } = message
  const tools = forms.tools
  const hasOnlyCalls = calls !== undefined && content === ''
  return {
    role,
    content: hasOnlyCalls ? (tools?.noContent ?? '') : writeContent(content, forms.content),
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(calls && {
      tool_calls: calls.map((call) => ({
        id: idOf(call.id, tools?.ids),
        type: 'function',
        function: {
          name: call.name,
          arguments: tools?.arguments === 'object' ? parsed(call.arguments) : call.arguments,
        },
      })),
    }),
    ...(callId !== undefined && { tool_call_id: idOf(callId, tools?.ids) }),
    ...(name !== undefined && { name }),
  }
}

function writeContent(content: string, form: TemplateForms['content']): unknown {
  return form === 'text' ? content : [{ type: 'text', text: content }]
}

export function writeTools({ tools }: Pick<Conversation, 'tools'>): object[] {
  return tools.map((tool) => ({ type: 'function', function: tool }))
}

function idOf(id: string, form: 'any' | 'nine' | undefined): string {
  if (form !== 'nine' || /^[a-zA-Z0-9]{9}$/.test(id)) return id
  return createHash('sha256').update(id).digest('hex').slice(0, 9)
}

function parsed(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value : {}
  } catch {
    return { input: text }
  }
}
