import { signal } from '@preact/signals'
import { useMemo } from 'preact/hooks'

export class Draft {
  readonly #values = signal<Readonly<Record<string, string>>>({})

  constructor(before: Readonly<Record<string, string>> = {}) {
    this.#values.value = before
  }

  text(name: string): string {
    return this.#values.value[name] ?? ''
  }

  set(name: string, text: string): void {
    this.#values.value = { ...this.#values.value, [name]: text }
  }

  /** A number; null for an empty field. */
  number(name: string): number | null {
    const text = this.text(name).trim()
    return text === '' ? null : Number(text)
  }

  /** Values separated by commas or spaces; null for an empty field. */
  parts(name: string): string[] | null {
    const parts = this.text(name)
      .split(/[\s,]+/)
      .filter(Boolean)
    return parts.length > 0 ? parts : null
  }
}

/** A draft that lives as long as its form. */
export function useDraft(before: Readonly<Record<string, string>> = {}): Draft {
  return useMemo(() => new Draft(before), [])
}
