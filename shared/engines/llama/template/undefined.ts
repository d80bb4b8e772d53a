import { parse, tokenize } from '@huggingface/jinja'

/**
 * Undefined values in loops and filters. Jinja reads them as empty: `for call in message.tool_calls` runs zero times, and `tool.description
 * | trim` is an empty text. The JavaScript library throws instead.
 *
 * Each name in these places is therefore replaced with `name if name is defined else []` in the parsed program.
 */

type Program = ReturnType<typeof parse>
interface Node {
  readonly type: string
  [field: string]: unknown
}

/** Filters of texts. Filters of {@link KEPT} handle undefined values themselves; all others take lists. */
const TEXT_FILTERS = new Set(['trim', 'upper', 'lower', 'title', 'capitalize', 'string', 'replace', 'indent', 'safe'])
const KEPT = new Set(['default', 'd', 'tojson'])

export function parseLenient(source: string): Program {
  const program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }))
  visit(program)
  return program
}

function visit(value: unknown): void {
  if (Array.isArray(value)) for (const one of value) visit(one)
  if (value instanceof Map) for (const [key, one] of value) visit([key, one])
  if (!isNode(value)) return
  for (const field of Object.values(value)) visit(field)
  if (value.type === 'For') relax(value, 'iterable', '[]')
  if (value.type === 'SelectExpression') relax(value, 'lhs', '[]')
  if (value.type === 'FilterExpression' && !KEPT.has(filterOf(value))) {
    relax(value, 'operand', TEXT_FILTERS.has(filterOf(value)) ? "''" : '[]')
  }
}

function relax(node: Node, field: string, empty: string): void {
  const value = node[field]
  if (!isNode(value) || (value.type !== 'Identifier' && value.type !== 'MemberExpression')) return
  const [choice] = parse(tokenize(`{{ x if x is defined else ${empty} }}`)).body as unknown as Node[]
  if (!choice || !isNode(choice.condition)) throw new Error('Jinja has no conditions.')
  choice.condition.operand = value
  choice.trueExpr = value
  node[field] = choice
}

function filterOf({ filter }: Node): string {
  if (!isNode(filter)) return ''
  const name = filter.type === 'CallExpression' ? filter.callee : filter
  return isNode(name) ? String(name.value) : ''
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string'
}
