import { ServiceError } from '#shared/error.ts'
import { endOfString } from './read.ts'

/** Levels of arrays and objects: whatever walks a value that came over the network has a call for each. */
export const DEPTH_MAX = 128
/** Most keys of one object: far more of them cost a microsecond each, to parse and to walk. */
const KEYS_MAX = 50_000

/** Bytes that are looked at before others have their turn: about half a millisecond. */
const PIECE_BYTES = 256 * 1024

/** Most values of the JSON that callers send: room for the 100,000 messages that a conversation may have. */
const VALUES_MAX = 400_000

/**
 * Refuses JSON that would cost far more than its bytes promise, before it is parsed: 32 MiB of `1,` where messages belong
 * are gigabytes of findings for the schema, 32 MiB of `[` as much for the parser, an object of 400,000 keys seconds. Says
 * nothing about whether it is JSON. To be run by `runYielding`.
 *
 * @param valuesMax Values that it may hold; default: those of a request.
 * @returns How many values there are, about.
 * @throws ServiceError `invalid_request`
 */
export function* refuseShape(json: Buffer, valuesMax = VALUES_MAX): Generator<undefined, number> {
  let depth = 0
  let values = 1
  /** Of the objects that are open, by their depth. */
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
    if (values > valuesMax) throw invalid(`The JSON holds more than ${valuesMax} values.`)
    yield
  }
  return values
}

function invalid(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
