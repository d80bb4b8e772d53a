import type { Params } from './sql.ts'

export interface Compiled {
  readonly sql: string
  readonly names: readonly string[]
}

/** Replaces `:name` by `$1` or `?1`. Repeated names share a number. */
export function compile(sql: string, sign: '$' | '?'): Compiled {
  return replaceNames(sql, (_, index) => sign + (index + 1))
}

/** Replaces each `:name`. @param replacement Returns the text for a name, given its index among the distinct names, from 0. */
export function replaceNames(sql: string, replacement: (name: string, index: number) => string): Compiled {
  const names: string[] = []
  // A cast `::` is not a name. In JSON text, a digit, a quote or a bracket follows each colon, so no name begins there.
  const replaced = sql.replaceAll(/(?<!:):([a-z][a-z0-9_]*)/g, (_, name: string) => {
    if (!names.includes(name)) names.push(name)
    return replacement(name, names.indexOf(name))
  })
  return { sql: replaced, names }
}

export function valuesOf({ names }: Compiled, params: Params): Params[string][] {
  return names.map((name) => parameterOf(params, name))
}

export function parameterOf(params: Params, name: string): Params[string] {
  const value = params[name]
  if (value === undefined) throw new Error(`no value for :${name}`)
  return value
}
