import type { z } from 'zod'
import { ChangeLimits } from '#schemas/admin/keys.ts'
import { refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call } from '#services/ingress/call.ts'
import { projectIdNamed } from '#services/ingress/callers/named-project.ts'
import { ServiceError } from '#shared/error.ts'
import type { Known } from '#shared/keys/lenient.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** Who changes something, for the audit. */
export function authorOf({ key }: Call): string {
  return `key:${key.id}`
}

/** Refuses a field that is not known: it may be a limit, misspelt. @throws ServiceError `unsupported_parameter` */
export function checkFields(schema: z.ZodObject, body: unknown): void {
  refuseUnknown(schema, body)
  refuseUnknown(ChangeLimits, (body as { limits?: unknown } | null)?.limits, 'limits.')
}

/** The failure of an update that says nothing. */
export function nothingAsked(): ServiceError {
  return new ServiceError('invalid_request', 'There is nothing to change. Name a field, such as name or limits.')
}

/** A page of what a store lists oldest first, newest first. @param after The last one of the page before */
export function pageOf<T extends { readonly id: string }>(oldestFirst: readonly T[], limit: number, after?: string) {
  const all = oldestFirst.toReversed()
  const at = after === undefined ? -1 : all.findIndex(({ id }) => id === after)
  if (after !== undefined && at < 0) {
    throw new ServiceError('invalid_value', `There is nothing with the id '${after}' here.`, { param: 'after' })
  }
  return { page: all.slice(at + 1, at + 1 + limit), hasMore: all.length > at + 1 + limit }
}

/** The id of a project that is there, by its id or name. @throws ServiceError `invalid_value` where it is not */
export function requireProject(known: Known, text: string): string {
  const id = projectIdNamed(known, text)
  if (known.projects.some((project) => project.id === id) || known.keys.some((key) => projectIdOf(key) === id))
    return id
  const message = `There is no project '${text}'. GET /v1/admin/projects lists them, POST makes one.`
  throw new ServiceError('invalid_value', message, { param: 'project' })
}

/** @throws ServiceError `invalid_request` where a store is full */
export function requireQuota(count: number, most: number, what: string): void {
  if (count < most) return
  throw new ServiceError('invalid_request', `There are ${count} ${what}, which is the most that one service may have.`)
}
