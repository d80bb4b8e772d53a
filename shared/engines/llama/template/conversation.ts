import type { Piece } from './marks.ts'

/** Messages between the engine and the thread that renders a template. */

/** One message of a conversation, before it has the form that a template wants. */
export interface TemplateMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly reasoning?: string
  readonly calls?: readonly TemplateCall[]
  /** Of a tool's result: the call that it answers, and the name of the tool. */
  readonly callId?: string
  readonly name?: string
}

export interface TemplateCall {
  readonly id: string
  readonly name: string
  /** JSON text. */
  readonly arguments: string
}

export interface TemplateTool {
  readonly name: string
  readonly description: string
  readonly parameters: object
}

export interface Conversation {
  readonly messages: readonly TemplateMessage[]
  readonly tools: readonly TemplateTool[]
  /** The beginning of the answer. */
  readonly prefill: string
  /** Whether the model thinks first; undefined: as its template decides. */
  readonly thinks?: boolean | undefined
}

/** How a template wants calls of tools. */
export interface ToolForms {
  readonly arguments: 'object' | 'text'
  /** Some accept only ids of nine letters and digits. */
  readonly ids: 'any' | 'nine'
  /** Content of a message that has calls only. */
  readonly noContent: '' | null
  /** Words of a call before the name of the tool. */
  readonly before: readonly Piece[]
  /** Words between the name and the arguments. */
  readonly between: readonly Piece[]
}

/** What a template can render, found out by rendering small conversations. */
export interface TemplateForms {
  readonly content: 'text' | 'parts'
  /** The variable `tools` if there are none: some templates loop over it in any case. */
  readonly noTools: readonly [] | null
  /** System turns: none, one at the beginning, or anywhere. */
  readonly system: 'none' | 'first' | 'any'
  /** Undefined: the template drops tools, calls or results, or its calls have no JSON arguments after a name. */
  readonly tools: ToolForms | undefined
  /** Plain text that ends a turn of the assistant, if no control token does. */
  readonly endMark: string | undefined
}

export interface TemplateSource {
  readonly source: string
  readonly bosToken: string
  readonly eosToken: string
  readonly marks: readonly { text: string; token: number; lstrip?: boolean; rstrip?: boolean }[]
}

export type ThreadTask =
  | { readonly add: readonly TemplateMessage[] }
  | { readonly render: Omit<Conversation, 'messages'> }

/** `refusal`: the template refuses the conversation. `problem`: it cannot be used, or failed. */
export type ThreadReply =
  | { readonly forms: TemplateForms }
  | PackedPieces
  | { readonly refusal: string }
  | { readonly problem: string }

/** Pieces as one text and one list, which pass between threads at once: of each piece its token, or -1 and where its text ends. */
export interface PackedPieces {
  readonly text: string
  readonly layout: Int32Array
}

export function packPieces(pieces: readonly Piece[]): PackedPieces {
  const layout: number[] = []
  let text = ''
  for (const piece of pieces) {
    if (typeof piece !== 'string') {
      layout.push(piece)
      continue
    }
    text += piece
    layout.push(-1, text.length)
  }
  return { text, layout: Int32Array.from(layout) }
}

/** To be run by `runYielding`. */
export function* unpackPieces({ text, layout }: PackedPieces): Generator<undefined, Piece[]> {
  const pieces: Piece[] = []
  let from = 0
  for (let at = 0; at < layout.length; at++) {
    const token = layout[at] as number
    if (token >= 0) {
      pieces.push(token)
      continue
    }
    const end = layout[++at] as number
    pieces.push(text.slice(from, end))
    from = end
    if (pieces.length % 1_000 === 0) yield
  }
  return pieces
}
