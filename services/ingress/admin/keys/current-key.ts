import type { z } from 'zod'
import { ChangeLimits } from '#schemas/admin/keys.ts'
import { refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call } from '#services/ingress/calls/call.ts'
import type { ValidKeys } from '#shared/keys/lenient.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'

export function authorOf({ key }: Call): string {
  return `key:${key.id}`
}

/**
 * Refuses unknown fields, also in `limits`. Otherwise a misspelt limit would be ignored without an error.
 *
 * @throws ServiceError `unsupported_parameter`
 */
export function checkFields(schema: z.ZodObject, body: unknown): void {
  refuseUnknown(schema, body)
  refuseUnknown(ChangeLimits, (body as { limits?: unknown } | null)?.limits, 'limits.')
}

/** Error for an update without fields. */
export function nothingAsked(): ServiceError {
  return new ServiceError('invalid_request', 'There is nothing to change. Name a field, such as name or limits.')
}

/**
 * A page of a list, newest entry first.
 *
 * @param oldestFirst The whole list, oldest entry first
 * @param after Id of the last entry of the previous page
 */
export function pageOf<T extends { readonly id: string }>(oldestFirst: readonly T[], limit: number, after?: string) {
  const all = oldestFirst.toReversed()
  const at = after === undefined ? -1 : all.findIndex(({ id }) => id === after)
  if (after !== undefined && at < 0) {
    throw new ServiceError('invalid_value', `No entry with the id '${after}' exists.`, { param: 'after' })
  }
  return { page: all.slice(at + 1, at + 1 + limit), hasMore: all.length > at + 1 + limit }
}

/**
 * Id of an existing project, by its id or name.
 *
 * @throws ServiceError `invalid_value` if there is none
 */
export function requireProject(known: ValidKeys, text: string): string {
  const id = projectIdNamed(known, text)
  if (known.projects.some((project) => project.id === id) || known.keys.some((key) => projectIdOf(key) === id))
    return id
  const message = `No project '${text}' exists. GET /v1/admin/projects lists them; POST creates one.`
  throw new ServiceError('invalid_value', message, { param: 'project' })
}

/** @throws ServiceError `invalid_request` if the maximum is reached */
export function requireQuota(count: number, most: number, what: string): void {
  if (count < most) return
  throw new ServiceError('invalid_request', `${count} ${what} exist, the maximum per service.`)
}
