import { ServiceError } from '#shared/lib/error.ts'
import { endOfString } from './read.ts'

/** Maximum nesting depth. Functions that visit a received value recurse once per level. */
export const DEPTH_MAX = 128
/** Maximum keys per object. In much larger objects, parsing or visiting a key takes a microsecond. */
const KEYS_MAX = 50_000

const PIECE_BYTES = 256 * 1024

/** Maximum values in a request. A conversation of 100,000 messages fits. */
const VALUES_MAX = 400_000

/**
 * Rejects JSON that would cost far more than its size suggests, before it is parsed. Examples:
 * 1. 32 MiB of `1,` instead of messages cause gigabytes of validation errors.
 * 2. 32 MiB of `[` take gigabytes of memory in the parser.
 * 3. An object of 400,000 keys takes seconds.
 *
 * The text may be invalid JSON: that is not checked. To be run by `runYielding`.
 *
 * @param valuesMax Maximum number of values; default: that of a request
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
