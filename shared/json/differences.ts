import { isDeepStrictEqual } from 'node:util'

const DIFFERENCES_MAX = 8
const SHOWN_CHARS = 120

export function differencesOf(a: unknown, b: unknown): string[] {
  const found: string[] = []
  for (const line of walk(a, b, '')) {
    if (found.length === DIFFERENCES_MAX) return [...found, '…']
    found.push(line)
  }
  return found
}

export function shownValue(value: unknown): string {
  const text = JSON.stringify(value) ?? 'nothing'
  return text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS).toWellFormed()}…` : text
}

function* walk(a: unknown, b: unknown, path: string): Generator<string> {
  if (isDeepStrictEqual(a, b)) return
  if (!isTree(a) || !isTree(b) || Array.isArray(a) !== Array.isArray(b)) {
    yield `${path || 'the value'}: ${shownValue(a)} ≠ ${shownValue(b)}`
    return
  }
  for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) {
    yield* walk(a[key], b[key], path === '' ? key : `${path}.${key}`)
  }
}

function isTree(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}
