import { ServiceError } from '#shared/error.ts'

/** Deepest nesting of a JSON body: far beyond any real request, far below what overflows a stack. */
const DEPTH_MAX = 128
/** Most objects and arrays of a JSON body: the largest conversations have a few hundred thousand. */
const CONTAINERS_MAX = 500_000

const QUOTE = 0x22
const BACKSLASH = 0x5c

/**
 * Refuses JSON that would take far more memory parsed than it has bytes, before it is parsed: 32 MiB of `[` or of `[],`
 * are a gigabyte of objects. Says nothing about whether it is JSON at all.
 *
 * @throws ServiceError `invalid_request`
 */
export function refuseShape(json: Buffer): void {
  let depth = 0
  let containers = 0
  for (let i = 0; i < json.length; i++) {
    switch (json[i]) {
      case QUOTE:
        i = endOfString(json, i)
        break
      case 0x5b: // [
      case 0x7b: // {
        if (++depth > DEPTH_MAX) throw refusal(`The JSON is nested deeper than ${DEPTH_MAX} levels.`)
        if (++containers > CONTAINERS_MAX) throw refusal(`The JSON has more than ${CONTAINERS_MAX} objects and arrays.`)
        break
      case 0x5d: // ]
      case 0x7d: // }
        depth--
    }
  }
}

/** The closing quote of a string, or the end of the bytes. The search is native: long strings cost next to nothing. */
function endOfString(json: Buffer, start: number): number {
  for (let end = json.indexOf(QUOTE, start + 1); end !== -1; end = json.indexOf(QUOTE, end + 1)) {
    let escapes = 0
    while (json[end - 1 - escapes] === BACKSLASH) escapes++
    if (escapes % 2 === 0) return end
  }
  return json.length
}

function refusal(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
