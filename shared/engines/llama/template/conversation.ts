import type { Piece } from './marks.ts'

export interface TemplateMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly reasoning?: string
  readonly calls?: readonly TemplateCall[]
  /** For a tool's result: id of its call, and name of the tool. */
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
  readonly prefill: string
  /** Whether the model reasons first; undefined: the template's default. */
  readonly thinks?: boolean | undefined
}

export interface ToolForms {
  readonly arguments: 'object' | 'text'
  /** Some templates accept only call ids of nine letters and digits. */
  readonly ids: 'any' | 'nine'
  /** Content that the template expects in a message with calls but without text. */
  readonly noContent: '' | null
  readonly before: readonly Piece[]
  readonly between: readonly Piece[]
}

/** The capabilities of a template, detected by rendering small conversations. */
export interface TemplateForms {
  readonly content: 'text' | 'parts'
  /** Value of the template variable `tools` for a request without tools. Some templates always loop over the variable. */
  readonly noTools: readonly [] | null
  /** Supported system turns: none, one at the beginning, or anywhere. */
  readonly system: 'none' | 'first' | 'any'
  /** Undefined if the template drops tools, calls or results, or if its calls are no name followed by JSON arguments. */
  readonly tools: ToolForms | undefined
  /** Plain text that ends an assistant turn, if no control token does. */
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

/** `refusal`: the template rejects the conversation. `problem`: the template is unusable or failed. */
export type ThreadReply =
  | { readonly forms: TemplateForms }
  | PackedPieces
  | { readonly refusal: string }
  | { readonly problem: string }

/**
 * Pieces as one text and one array, which can be transferred between threads quickly. For each piece the array has its token, or -1 and the
 * end of its text.
 */
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

/** Converts transferred pieces back. Run it by `runYielding`. */
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
