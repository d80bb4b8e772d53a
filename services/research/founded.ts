import { ServiceError } from '#shared/error.ts'
import type { Report } from './report.ts'

/**
 * The last check before a report is sent: every annotation covers a marker such as `[1]`, in order, and its quote stands
 * character for character in the text of the source that it names. A report that fails it is a mistake of ours.
 *
 * @throws ServiceError `internal_error`
 */
export function requireFounded({ content, annotations, sources }: Report): void {
  let last = 0
  for (const { url_citation: cited } of annotations) {
    const marker = sliceByPoints(content, cited.start_index, cited.end_index)
    const source = sources[Number(/^\[(\d{1,3})\]$/.exec(marker)?.[1]) - 1]
    const isOf = source?.url === cited.url && source.sha256 === cited.source_sha256
    if (!source || !isOf || cited.start_index < last) throw unfounded()
    if (sliceByPoints(source.text, cited.source_start, cited.source_end) !== cited.quote) throw unfounded()
    last = cited.end_index
  }
}

/** A part of a text by offsets in code points. */
function sliceByPoints(text: string, start: number, end: number): string {
  let [points, from] = [0, text.length]
  for (let at = 0; at < text.length; at++) {
    // The second half of a pair counts with the first.
    if ((text.charCodeAt(at) & 0xfc00) === 0xdc00) continue
    if (points === start) from = Math.min(from, at)
    if (points === end) return text.slice(from, at)
    points++
  }
  return text.slice(from)
}

function unfounded(): ServiceError {
  return new ServiceError('internal_error', 'A citation of the report does not stand in its source.')
}
