import { createHash } from 'node:crypto'
import type { Conversation, TemplateForms, TemplateMessage, ToolForms } from './conversation.ts'

/** Converts conversations into the form that a template accepts. */

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

/** A caller's arguments are not always JSON. */
function parsed(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value : {}
  } catch {
    return { input: text }
  }
}
