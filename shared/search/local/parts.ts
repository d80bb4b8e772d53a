import { type Block, SNAPSHOT_CHARS_MAX, type Snapshot } from '#shared/search/search.ts'
import { sha256Of } from '#shared/search/snapshot.ts'
import type { ReadDocument } from '#shared/search/text/builder.ts'

/** A document as the sources that it makes: one, or several where it is longer than a snapshot may be. */
export function partsOf(document: ReadDocument, url: string, title: string, date: string): Snapshot[] {
  const groups = groupsOf(document.blocks)
  return groups.map((blocks, at) => {
    const isPart = groups.length > 1
    const start = blocks[0]?.start ?? 0
    const text = document.text.slice(start, blocks.at(-1)?.end ?? 0)
    return {
      url: isPart ? `${url}#part-${at + 1}` : url,
      title: isPart ? `${title} (part ${at + 1})` : title,
      text,
      blocks: blocks.map((block) => ({ ...block, start: block.start - start, end: block.end - start })),
      sha256: sha256Of(text),
      date,
    }
  })
}

/** Blocks that fit into one snapshot each. One that is longer than that is cut where it is full. */
function groupsOf(blocks: readonly Block[]): Block[][] {
  const groups: Block[][] = []
  for (const whole of blocks) {
    for (const block of cut(whole)) {
      const group = groups.at(-1)
      const first = group?.[0]
      if (group && first && block.end - first.start <= SNAPSHOT_CHARS_MAX) group.push(block)
      else groups.push([block])
    }
  }
  return groups
}

function* cut(block: Block): Generator<Block> {
  for (let start = block.start; start < block.end; start += SNAPSHOT_CHARS_MAX)
    yield { ...block, start, end: Math.min(block.end, start + SNAPSHOT_CHARS_MAX) }
}
