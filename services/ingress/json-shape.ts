import { ServiceError } from '#shared/error.ts'

/** Deepest nesting of a JSON body: far beyond any real request, far below what overflows a stack. */
const DEPTH_MAX = 128
/** Most values of a JSON body: room for the 100,000 messages the contract allows. */
const VALUES_MAX = 400_000
/** Most keys of one object: far more of them cost a microsecond each, to parse and to walk. */
const KEYS_MAX = 10_000

/** Where counting begins in an array, whose values are bounded by those of the body alone. */
const ARRAY = -(2 ** 31)

const QUOTE = 0x22
const BACKSLASH = 0x5c

/**
 * Refuses JSON that would cost far more than its bytes promise, before it is parsed: 32 MiB of `1,` where messages belong
 * are gigabytes of findings for the schema, 32 MiB of `[` as much for the parser, an object of 400,000 keys seconds. Says nothing about whether it is JSON.
 *
 * @throws ServiceError `invalid_request`
 */
export function refuseShape(json: Buffer): void {
  let depth = 0
  let values = 1
  /** Commas of the objects around, by depth; of arrays they count for nothing. */
  const commas = new Int32Array(DEPTH_MAX + 1)
  for (let i = 0; i < json.length; i++) {
    switch (json[i]) {
      case QUOTE:
        i = endOfString(json, i)
        break
      case 0x5b: // [
      case 0x7b: // {
        if (++depth > DEPTH_MAX) throw refusal(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
        values++
        commas[depth] = json[i] === 0x7b ? 0 : ARRAY
        break
      case 0x2c: // ,
        values++
        if (count(commas, depth) >= KEYS_MAX) throw refusal(`An object of the JSON has more than ${KEYS_MAX} keys.`)
        break
      case 0x5d: // ]
      case 0x7d: // }
        depth--
    }
  }
  if (values > VALUES_MAX) throw refusal(`The JSON holds more than ${VALUES_MAX} values.`)
}

function count(commas: Int32Array, depth: number): number {
  const seen = (commas[depth] ?? ARRAY) + 1
  commas[depth] = seen
  return seen
}

/** The closing quote of a string, or the end of the bytes. */
function endOfString(json: Buffer, start: number): number {
  let end = start + 1
  while (end < json.length && json[end] !== QUOTE) end += json[end] === BACKSLASH ? 2 : 1
  return end
}

function refusal(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
