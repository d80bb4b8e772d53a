import { ServiceError } from '#shared/error.ts'
import type { Report } from './report.ts'

/**
 * The last check before a report is sent. Every annotation must cover a marker such as `[1]`, in order. The quote must be equal to the
 * cited range of its source, character for character. A failure is a defect of the report writer.
 *
 * @throws ServiceError `internal_error` if a citation fails the check
 */
export function requireExactCitations({ content, annotations, sources }: Report): void {
  let last = 0
  for (const { url_citation: cited } of annotations) {
    const marker = sliceByPoints(content, cited.start_index, cited.end_index)
    const source = sources[Number(/^\[(\d{1,3})\]$/.exec(marker)?.[1]) - 1]
    const isOf = source?.url === cited.url && source.sha256 === cited.source_sha256
    if (!source || !isOf || cited.start_index < last) throw citationError()
    if (sliceByPoints(source.text, cited.source_start, cited.source_end) !== cited.quote) throw citationError()
    last = cited.end_index
  }
}

/** Like `String.slice`, but with offsets in code points. */
function sliceByPoints(text: string, start: number, end: number): string {
  let [points, from] = [0, text.length]
  for (let at = 0; at < text.length; at++) {
    // Skip low surrogates, so that a surrogate pair counts as one code point.
    if ((text.charCodeAt(at) & 0xfc00) === 0xdc00) continue
    if (points === start) from = Math.min(from, at)
    if (points === end) return text.slice(from, at)
    points++
  }
  return text.slice(from)
}

function citationError(): ServiceError {
  return new ServiceError('internal_error', 'A citation of the report does not stand in its source.')
}
