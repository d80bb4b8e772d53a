import type { Dialect, GenerateEvent } from '#schemas/generate.ts'
import { objectIn } from '#shared/json/object.ts'

export type NativeEvent = Extract<GenerateEvent, { type: 'native' }>

/** Makes an event with output that the internal form does not represent. Only a caller of the same dialect receives such output. */
export function nativeEvent(
  dialect: Dialect,
  scope: NativeEvent['scope'],
  value: Readonly<Record<string, unknown>>,
  choice = 0,
): NativeEvent {
  return { type: 'native', choice, dialect, scope, text: JSON.stringify(value) }
}

/** Concatenates the pieces of the native events of one choice and parses them as objects. Events of other dialects are ignored. */
export class NativeReader {
  readonly #dialect: Dialect
  #pieces: string[] = []

  constructor(dialect: Dialect) {
    this.#dialect = dialect
  }

  read(event: NativeEvent): Record<string, unknown> | undefined {
    if (event.dialect !== this.#dialect) return undefined
    this.#pieces.push(event.text)
    if (event.more) return undefined
    const json = this.#pieces.join('')
    this.#pieces = []
    return objectIn(json)
  }
}
