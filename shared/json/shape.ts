import { ServiceError } from '#shared/lib/error.ts'
import { endOfString } from './read.ts'

/** Maximum nesting depth, because code that visits a received value recurses once per level. */
export const DEPTH_MAX = 128
/** Maximum keys per object. In much larger objects, each key takes a microsecond to parse or to visit. */
const KEYS_MAX = 50_000

/** Bytes checked between two event-loop yields: about half a millisecond. */
const PIECE_BYTES = 256 * 1024

/** Maximum values in a request: enough for the 100,000 messages of a conversation. */
const VALUES_MAX = 400_000

/**
 * Rejects JSON that would cost far more than its size suggests, before it is parsed. Examples follow. 1. 32 MiB of `1,` instead
 * of messages cause gigabytes of validation errors. 2. 32 MiB of `[` cause as much memory use in the parser.
 * 3. An object of 400,000 keys takes seconds.
 *
 * Does not check whether the text is valid JSON. To be run by `runYielding`.
 *
 * @param valuesMax Maximum values; default: that of a request.
 * @returns Approximate number of values
 * @throws ServiceError `invalid_request`
 */
export function* refuseShape(json: Buffer, valuesMax = VALUES_MAX): Generator<undefined, number> {
  let depth = 0
  let values = 1
  const members = new Uint32Array(DEPTH_MAX + 1)
  let isInString = false
  for (let i = 0; i < json.length; ) {
    const most = Math.min(json.length, i + PIECE_BYTES)
    while (i < most) {
      if (isInString) {
        i = endOfString(json, i, most)
        isInString = i >= most
        if (!isInString) i++
        continue
      }
      switch (json[i++]) {
        case 0x22: // "
          isInString = true
          break
        case 0x5b: // [
        case 0x7b: // {
          if (++depth > DEPTH_MAX) throw invalid(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
          members[depth] = 0
          values++
          break
        case 0x3a: // :
          members[depth] = (members[depth] ?? 0) + 1
          if ((members[depth] ?? 0) > KEYS_MAX) throw invalid(`An object of the JSON has more than ${KEYS_MAX} keys.`)
          break
        case 0x2c: // ,
          values++
          break
        case 0x5d: // ]
        case 0x7d: // }
          depth--
      }
    }
    if (values > valuesMax) throw invalid(`The JSON contains more than ${valuesMax} values.`)
    yield
  }
  return values
}

function invalid(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
