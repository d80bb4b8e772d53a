import { ServiceError } from '#shared/error.ts'

/** Deepest nesting of a JSON body: far beyond any real request, far below what overflows a stack. */
const DEPTH_MAX = 128
/** Most values of a JSON body: room for the 100,000 messages the contract allows. */
const VALUES_MAX = 400_000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/**
 * Refuses JSON that would cost far more than its bytes promise, before it is parsed: 32 MiB of `1,` where messages belong
 * are gigabytes of findings for the schema, 32 MiB of `[` as much for the parser. Says nothing about whether it is JSON.
 *
 * @throws ServiceError `invalid_request`
 */
export function refuseShape(json: Buffer): void {
  let depth = 0
  let values = 1
  for (let i = 0; i < json.length; i++) {
    switch (json[i]) {
      case QUOTE:
        i = endOfString(json, i)
        break
      case 0x5b: // [
      case 0x7b: // {
        if (++depth > DEPTH_MAX) throw refusal(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
        values++
        break
      case 0x2c: // ,
        values++
        break
      case 0x5d: // ]
      case 0x7d: // }
        depth--
    }
  }
  if (values > VALUES_MAX) throw refusal(`The JSON holds more than ${VALUES_MAX} values.`)
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
