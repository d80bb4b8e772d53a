import type { TextBuilder } from './builder.ts'

/** Reads plain text: empty lines separate paragraphs, and each list item is a block. */
export function readPlain(source: string, builder: TextBuilder): void {
  for (const paragraph of source.replace(/\r\n?/g, '\n').split(/\n[ \t]*\n/)) {
    if (builder.isFull) return
    const lines = paragraph.trim().split('\n')
    const isList = lines.length > 1 && lines.every((line) => /^\s*[-*•]\s/.test(line))
    if (!isList) builder.add('text', paragraph)
    else for (const line of lines) builder.add('item', line.replace(/^\s*[-*•]\s+/, ''))
  }
}
