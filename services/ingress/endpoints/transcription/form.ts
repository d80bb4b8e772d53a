import type { FormField } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { ServiceError } from '#shared/lib/error.ts'

/*
 * Converts the fields of a transcription form to a JSON body (docs/reference/compatibility.md, Uploads). Clients write
 * lists and objects in several ways:
 *
 *   name[]=a name[]=b · name=a name=b · name[0]=a name[1]=b
 *   chunking_strategy=auto · chunking_strategy={"type":"server_vad"} · chunking_strategy[type]=server_vad
 *
 * An empty field counts as absent. An invalid number or boolean stays text, so that validation of the body reports it.
 * Unknown fields are dropped.
 */

const LISTS: ReadonlySet<string> = new Set([
  ...['languages', 'keywords', 'timestamp_granularities', 'include'],
  ...['known_speaker_names', 'known_speaker_references'],
])
const TEXTS: ReadonlySet<string> = new Set(['model', 'language', 'prompt', 'response_format'])
const STRATEGY = 'chunking_strategy'
/**
 * Maximum characters of `chunking_strategy` as JSON, which has four members. Limited, because longer JSON could be
 * nested deeply.
 */
const STRATEGY_CHARS_MAX = 1_024
const FLAGS: ReadonlySet<string> = new Set(['stream', 'background', 'store'])

/** Field name: `name`, `name[]` or `name[key]`. */
const NAME = /^([a-z_]{1,64})(?:\[([a-z_]{0,64}|\d{1,3})\])?$/

/**
 * Converts the fields of a form to a body.
 *
 * @throws ServiceError `invalid_value` for a field that is given twice or in two ways
 */
export function bodyOfForm(fields: readonly FormField[]): Record<string, unknown> {
  const body: Record<string, unknown> = {}
  const lists = new Map<string, Item[]>()
  for (const { name, value } of fields) {
    const [, field = '', key] = NAME.exec(name) ?? []
    if (value === '') continue
    if (LISTS.has(field)) addItem(lists, field, key, value)
    else if (field === STRATEGY && key) addMember(body, key, value)
    else if (key === undefined) addValue(body, field, value)
  }
  for (const [field, items] of lists) {
    body[field] = items.sort((a, b) => a.index - b.index).map(({ value }) => value)
  }
  return body
}

/** Item of a list. `index` is the one in the field name, or else the position among the received items. */
interface Item {
  readonly index: number
  readonly value: string
}

function addItem(lists: Map<string, Item[]>, field: string, key: string | undefined, value: string): void {
  const items = lists.get(field) ?? []
  items.push({ index: key ? Number(key) : items.length, value })
  lists.set(field, items)
}

function addValue(body: Record<string, unknown>, field: string, value: string): void {
  const read = readValue(field, value)
  if (read === undefined) return
  if (field in body) throw twice(field)
  body[field] = read
}

/** Value of a field; undefined if the field is unknown. */
function readValue(field: string, value: string): unknown {
  if (TEXTS.has(field)) return value
  if (FLAGS.has(field)) return readFlag(value)
  if (field === 'temperature') return readNumber(value)
  if (field === STRATEGY) return value.trimStart().startsWith('{') ? readStrategy(value) : value
  return undefined
}

function addMember(body: Record<string, unknown>, key: string, value: string): void {
  const members = body[STRATEGY] ?? {}
  if (typeof members !== 'object' || Object.hasOwn(members, key)) throw twice(`${STRATEGY}[${key}]`)
  body[STRATEGY] = { ...members, [key]: key === 'type' ? value : readNumber(value) }
}

/** Accepts `true` and `True`, as JSON and Python write them. */
function readFlag(value: string): boolean | string {
  const lower = value.toLowerCase()
  return lower === 'true' || lower === 'false' ? lower === 'true' : value
}

function readNumber(value: string): number | string {
  return /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(value.trim()) ? Number(value) : value
}

function readStrategy(value: string): unknown {
  try {
    if (value.length <= STRATEGY_CHARS_MAX) return JSON.parse(value)
  } catch {
    // Left as text, which the validation of the body rejects.
  }
  throw new ServiceError('invalid_value', `Invalid '${STRATEGY}': expected 'auto' or a JSON object.`, {
    param: STRATEGY,
  })
}

function twice(field: string): ServiceError {
  const param = excerpt(field)
  return new ServiceError('invalid_value', `The field '${param}' is given more than once.`, { param })
}
