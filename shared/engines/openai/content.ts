interface Piece {
  readonly isThought: boolean
  readonly text: string
}

const DEPTH_MAX = 4

/**
 * The texts of a content that is no string. Such contents are the parts of Mistral's models and of other APIs, numbers, and JSON that a
 * server parsed into an object.
 */
export function pieces(content: unknown): Piece[] {
  if (content === null || content === undefined) return []
  const found: Piece[] = []
  collect(content, false, 0, found)
  if (found.length > 0 || typeof content !== 'object' || Array.isArray(content) || 'type' in content) return found
  return [{ isThought: false, text: JSON.stringify(content) }]
}

function collect(content: unknown, isThought: boolean, depth: number, found: Piece[]): void {
  if (typeof content === 'string') found.push({ isThought, text: content })
  else if (typeof content === 'number' || typeof content === 'boolean') found.push({ isThought, text: String(content) })
  else if (typeof content !== 'object' || content === null || depth >= DEPTH_MAX) return
  else if (Array.isArray(content)) for (const part of content) collect(part, isThought, depth + 1, found)
  else {
    const { type, text, thinking, reasoning, value } = content as Record<string, unknown>
    const isInner = isThought || (typeof type === 'string' && /think|reason/i.test(type))
    collect(thinking ?? reasoning, true, depth + 1, found)
    // Parts of the Assistants API have their text in `text.value`.
    collect(text ?? (depth > 0 ? value : undefined), isInner, depth + 1, found)
  }
}
