import type { Params } from './sql.ts'

/** SQL with numbered parameters, and what they are. */
export interface Compiled {
  readonly sql: string
  readonly names: readonly string[]
}

/** Turns `:name` into `$1` or `?1`. A name that comes twice keeps its number. */
export function compile(sql: string, sign: '$' | '?'): Compiled {
  const names: string[] = []
  // `::` is a cast; a colon in JSON text is followed by a digit, a quote or a bracket.
  const numbered = sql.replaceAll(/(?<!:):([a-z][a-z0-9_]*)/g, (_, name: string) => {
    if (!names.includes(name)) names.push(name)
    return sign + (names.indexOf(name) + 1)
  })
  return { sql: numbered, names }
}

/** The values of compiled SQL, in order. @throws Error for one that is missing: a mistake in the code */
export function valuesOf({ names }: Compiled, params: Params): (string | number | boolean | null)[] {
  return names.map((name) => {
    const value = params[name]
    if (value === undefined) throw new Error(`no value for :${name}`)
    return value
  })
}
