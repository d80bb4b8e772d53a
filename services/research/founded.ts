import { ServiceError } from '#shared/error.ts'
import type { Snapshot } from '#shared/search/search.ts'
import type { Report } from './report.ts'

/**
 * The last check before a report is sent: every annotation covers a marker such as `[1]`, in order, and its quote stands
 * character for character in the text of the source that it names. A report that fails it is a mistake of ours.
 *
 * @throws ServiceError `internal_error`
 */
export function requireFounded({ content, annotations, sources }: Report): void {
  const points = Array.from(content)
  const texts = new Map<string, readonly string[]>()
  let last = 0
  for (const { url_citation: cited } of annotations) {
    const marker = points.slice(cited.start_index, cited.end_index).join('')
    const source = sources[Number(/^\[(\d{1,3})\]$/.exec(marker)?.[1]) - 1]
    const isOf = source?.url === cited.url && source.sha256 === cited.source_sha256
    if (!source || !isOf || cited.start_index < last) throw unfounded()
    const text = texts.get(cited.source_sha256) ?? pointsIn(source)
    texts.set(cited.source_sha256, text)
    if (text.slice(cited.source_start, cited.source_end).join('') !== cited.quote) throw unfounded()
    last = cited.end_index
  }
}

function pointsIn({ text }: Snapshot): readonly string[] {
  return Array.from(text)
}

function unfounded(): ServiceError {
  return new ServiceError('internal_error', 'A citation of the report does not stand in its source.')
}
