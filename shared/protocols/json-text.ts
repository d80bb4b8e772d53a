/** A JSON value that is written already: what is large is written in pieces, so that others have their turn in between. */
export class JsonText {
  readonly text: string

  constructor(text: string) {
    this.text = text
  }
}

/** The JSON text of a value. */
export function jsonTextOf(value: unknown): string {
  return value instanceof JsonText ? value.text : JSON.stringify(value)
}
