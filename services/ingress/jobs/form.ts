import { JobFields } from '#schemas/jobs.ts'
import type { FormField } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Reads job options from form fields, with the field names of `POST /v1/jobs`. Clients write objects and lists in
 * several ways:
 *
 *   priority=low · run_at=1790000000
 *   metadata={"report":"2026-11"} · metadata[report]=2026-11
 *   webhook={"url":"https://…"} · webhook[url]=https://… webhook[events][]=job.completed
 *
 * An empty field counts as absent. A number that cannot be parsed stays text, which the schema refuses.
 */

const NUMBERS: ReadonlySet<string> = new Set(['run_at', 'expires_after_seconds', 'start_within_seconds'])
const OBJECTS: ReadonlySet<string> = new Set(['metadata', 'webhook'])
/** Maximum characters of `metadata` and `webhook` as JSON. Also limits their nesting depth. */
const OBJECT_CHARS_MAX = 64 * 1024

/** Field name: `name`, `name[member]`, `name[member][]` or `name[member][0]`. */
const NAME = /^([a-z_]{1,64})(?:\[([^\]]{1,256})\])?(\[\d{0,3}\])?$/

/**
 * Separates the job options from the other fields of a form.
 *
 * @throws ServiceError `invalid_value` for a field that is given twice or in two ways, and for invalid JSON
 */
export function readJobFields(fields: readonly FormField[]): {
  jobFields: Record<string, unknown>
  others: readonly FormField[]
} {
  const jobFields: Record<string, unknown> = {}
  const others = fields.filter((field) => !addField(jobFields, field))
  return { jobFields, others }
}

/** @returns false if the field is not a job option */
function addField(jobFields: Record<string, unknown>, { name, value }: FormField): boolean {
  const [, field = '', member, index] = NAME.exec(name) ?? []
  if (!Object.hasOwn(JobFields.shape, field)) return false
  if (value === '') return true
  const isMember = member !== undefined && OBJECTS.has(field)
  if (!isMember && (member ?? index) !== undefined) throw invalid(name, 'is neither an object nor a list')
  const known = jobFields[field]
  if (!isMember && known !== undefined) throw twice(name)
  jobFields[field] = isMember
    ? withMember(known, member, index !== undefined, { name, value })
    : readValue(field, value)
  return true
}

/** Adds a member to an object, or an item to a list in a member. */
function withMember(object: unknown = {}, member: string, isItem: boolean, { name, value }: FormField): object {
  if (typeof object !== 'object') throw twice(name)
  const known = Object.entries(object ?? {}).find(([key]) => key === member)?.[1]
  if (known !== undefined && !(isItem && Array.isArray(known))) throw twice(name)
  return { ...object, [member]: isItem ? [...(known ?? []), value] : value }
}

function readValue(field: string, value: string): unknown {
  if (NUMBERS.has(field)) return /^\d{1,15}$/.test(value.trim()) ? Number(value) : value
  return OBJECTS.has(field) ? readObject(field, value) : value
}

function readObject(field: string, value: string): unknown {
  try {
    if (value.length <= OBJECT_CHARS_MAX) return JSON.parse(value)
  } catch {
    // Left as text, which the validation rejects.
  }
  throw new ServiceError('invalid_value', `Invalid '${field}': expected a JSON object.`, { param: field })
}

function twice(name: string): ServiceError {
  return invalid(name, 'is given more than once')
}

function invalid(name: string, problem: string): ServiceError {
  const param = excerpt(name)
  return new ServiceError('invalid_value', `The field '${param}' ${problem}.`, { param })
}
