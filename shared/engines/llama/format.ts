import type { ChatHistoryItem, ChatWrapper, LlamaModel, Token } from 'node-llama-cpp'
import type { Conversation, Mark, Piece, TemplateMessage, TemplateSource, ToolForms } from './template/conversation.ts'
import { ModelTemplate } from './template/template.ts'

/**
 * A prompt before tokenization: plain text, and the tokens of marks such as the start of a turn. Plain text never becomes a control token, so a user
 * cannot end a turn by writing its end mark.
 */
export type Prompt = readonly (string | Token)[]

/**
 * The format of conversations. The template in the model's file defines the format. Without a template, the library's format for the model's name is
 * used.
 */
export interface ChatFormat {
  /**
   * Form in which the model was trained to write tool calls. If undefined, then the tools are described in the prompt text.
   * Earlier tool calls and their results are then written as ordinary text of the conversation.
   */
  readonly tools: ToolForms | undefined
  /** Ordinary texts that end a turn, for models that generate no control token at the end of a turn. */
  readonly endMarks: readonly string[]
  write(conversation: Conversation, signal: AbortSignal): Promise<Prompt>
  close(): Promise<void>
}

export async function openFormat(
  model: LlamaModel,
  resolve: (model: LlamaModel) => ChatWrapper,
  template?: string,
): Promise<ChatFormat> {
  const source = template ?? model.fileInfo.metadata.tokenizer?.chat_template
  return source === undefined || source.trim() === ''
    ? formatByName(model, resolve(model))
    : formatOf(model, await ModelTemplate.open(sourceOf(model, source)))
}

function formatOf(model: LlamaModel, template: ModelTemplate): ChatFormat {
  const { tools, endMark } = template.forms
  const { bos, shouldPrependBosToken } = model.tokens
  return {
    tools,
    endMarks: endMark === undefined ? [] : [endMark],
    write: async (conversation, signal) => {
      const prompt = (await template.render(conversation, signal)) as Prompt
      return shouldPrependBosToken && bos !== null && prompt[0] !== bos ? [bos, ...prompt] : prompt
    },
    close: () => template.close(),
  }
}

function sourceOf(model: LlamaModel, source: string): TemplateSource {
  const { bosString, eosString } = model.tokens
  return { source, bosToken: bosString ?? '', eosToken: eosString ?? '', marks: [...marksOf(model)] }
}

const NORMAL = 1
const BYTE = 6

/**
 * Yields the control tokens. Some tokens are ordinary in the file, but llama.cpp makes them control tokens because of their names in angle brackets.
 */
function* marksOf(model: LlamaModel): Generator<Mark> {
  const { tokens, token_type: types } = model.fileInfo.metadata.tokenizer.ggml
  for (const [id, text] of tokens.entries()) {
    const isOrdinary = types?.[id] === NORMAL || types?.[id] === BYTE
    if (isOrdinary && !(text.startsWith('<') && text.endsWith('>') && text.length > 2)) continue
    const attributes = model.getTokenAttributes(id as Token)
    if (!attributes.control && !attributes.unknown) continue
    yield { text, token: id, lstrip: attributes.lstrip, rstrip: attributes.rstrip }
  }
}

function formatByName(model: LlamaModel, wrapper: ChatWrapper): ChatFormat {
  const { stopGenerationTriggers } = wrapper.generateContextState({ chatHistory: [] })
  const endMarks = stopGenerationTriggers.map(({ values }) =>
    values.map((value) => (typeof value === 'string' ? value : '')).join(''),
  )
  return {
    tools: undefined,
    endMarks: endMarks.filter((mark) => mark !== ''),
    write: async ({ messages, prefill }) => {
      const chatHistory = [...messages.map(itemOf), itemOf({ role: 'assistant', content: prefill })]
      return promptOf(model, wrapper, chatHistory)
    },
    close: async () => {},
  }
}

function itemOf({ role, content }: TemplateMessage): ChatHistoryItem {
  if (role === 'assistant') return { type: 'model', response: [content] }
  return { type: role === 'system' ? 'system' : 'user', text: content }
}

function promptOf(model: LlamaModel, wrapper: ChatWrapper, chatHistory: ChatHistoryItem[]): Prompt {
  const pieces: (string | Token)[] = []
  for (const value of wrapper.generateContextState({ chatHistory }).contextText.values) {
    if (typeof value === 'string') pieces.push(value)
    else pieces.push(...value.tokenize(model.tokenizer, pieces.length > 0))
  }
  const isUnwanted = pieces[0] === model.tokens.bos && !model.tokens.shouldPrependBosToken
  return joinPieces(isUnwanted ? pieces.slice(1) : pieces)
}

export function joinPieces(pieces: readonly (Piece | Token)[]): Prompt {
  const joined: (string | Token)[] = []
  for (const piece of pieces) {
    const before = joined.at(-1)
    if (typeof piece === 'string' && typeof before === 'string') joined[joined.length - 1] = before + piece
    else joined.push(piece as string | Token)
  }
  return joined
}
