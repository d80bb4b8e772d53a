import { readFileSync } from 'node:fs'

/**
 * Returns the field names that a `.d.ts` file of a generated SDK declares, for each interface. Interface names include their namespaces, such as
 * `ChatCompletionChunk.Choice.Delta`.
 */
export function declaredFields(file: string): Map<string, string[]> {
  const text = readFileSync(file, 'utf8').replaceAll(/\/\*[\s\S]*?\*\//g, '')
  const fields = new Map<string, string[]>()
  const scope: { readonly name: string; readonly isInterface: boolean }[] = []
  for (const line of text.split('\n')) {
    const opened = /^\s*(?:export )?(?:declare )?(interface|namespace) (\w+)[^{]*\{\s*(\})?$/.exec(line)
    if (opened) {
      if (!opened[3]) scope.push({ name: opened[2] as string, isInterface: opened[1] === 'interface' })
      continue
    }
    const field = /^\s*'?(\w+)'?\??:\s*(.*)$/.exec(line)
    if (field && scope.at(-1)?.isInterface) {
      const name = scope.map((each) => each.name).join('.')
      fields.set(name, [...(fields.get(name) ?? []), field[1] as string])
    }
    if (/[{]\s*$/.test(line)) scope.push({ name: '', isInterface: false })
    if (/^\s*\}/.test(line)) scope.pop()
  }
  return fields
}

/** Returns the names of all fields in a value and in the values nested in it. */
export function fieldsIn(value: unknown, found = new Set<string>()): Set<string> {
  if (typeof value !== 'object' || value === null) return found
  for (const [name, inner] of Object.entries(value)) {
    if (!Array.isArray(value)) found.add(name)
    fieldsIn(inner, found)
  }
  return found
}
