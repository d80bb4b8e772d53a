import { ServiceError } from '#shared/error.ts'

/** Deepest nesting of a JSON body: far beyond any real request, far below what overflows a stack. */
const DEPTH_MAX = 128
/** Most values of a JSON body: room for the 100,000 messages that a conversation may have. */
const VALUES_MAX = 400_000
/** Most keys of one object: far more of them cost a microsecond each, to parse and to walk. */
const KEYS_MAX = 50_000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** Bytes that are looked at before others have their turn: about half a millisecond. */
const PIECE_BYTES = 256 * 1024

/**
 * Refuses JSON that would cost far more than its bytes promise, before it is parsed: 32 MiB of `1,` where messages belong
 * are gigabytes of findings for the schema, 32 MiB of `[` as much for the parser, an object of 400,000 keys seconds. Says
 * nothing about whether it is JSON. To be run by `inTurns`.
 *
 * @returns How many values there are, about.
 * @throws ServiceError `invalid_request`
 */
export function* refuseShape(json: Buffer): Generator<undefined, number> {
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
        case QUOTE:
          isInString = true
          break
        case 0x5b: // [
        case 0x7b: // {
          if (++depth > DEPTH_MAX) throw refusal(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
          members[depth] = 0
          values++
          break
        case 0x3a: // :
          members[depth] = (members[depth] ?? 0) + 1
          if ((members[depth] ?? 0) > KEYS_MAX) throw refusal(`An object of the JSON has more than ${KEYS_MAX} keys.`)
          break
        case 0x2c: // ,
          values++
          break
        case 0x5d: // ]
        case 0x7d: // }
          depth--
      }
    }
    yield
  }
  if (values > VALUES_MAX) throw refusal(`The JSON holds more than ${VALUES_MAX} values.`)
  return values
}

/** The closing quote of a string that has begun before, or where the search ends. */
function endOfString(json: Buffer, start: number, most: number): number {
  let end = start
  while (end < most && json[end] !== QUOTE) end += json[end] === BACKSLASH ? 2 : 1
  return end
}

function refusal(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
