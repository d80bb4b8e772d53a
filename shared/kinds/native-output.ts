import type { Dialect, GenerateEvent } from '#schemas/generate.ts'
import { objectIn } from '#shared/json/object.ts'

export type NativeEvent = Extract<GenerateEvent, { type: 'native' }>

/** Makes the event that carries output without an internal form to a caller of the same dialect. */
export function nativeEvent(
  dialect: Dialect,
  scope: NativeEvent['scope'],
  value: Readonly<Record<string, unknown>>,
  choice = 0,
): NativeEvent {
  return { type: 'native', choice, dialect, scope, text: JSON.stringify(value) }
}

/** Joins the pieces of native events of one choice into objects. Events of other dialects are ignored. */
export class NativeReader {
  readonly #dialect: Dialect
  #pieces: string[] = []

  /** @param dialect The API of the caller */
  constructor(dialect: Dialect) {
    this.#dialect = dialect
  }

  /** The object that ends with this event; undefined if more pieces follow, or if the object belongs to another dialect. */
  read(event: NativeEvent): Record<string, unknown> | undefined {
    if (event.dialect !== this.#dialect) return undefined
    this.#pieces.push(event.text)
    if (event.more) return undefined
    const json = this.#pieces.join('')
    this.#pieces = []
    return objectIn(json)
  }
}
