import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import { ServiceError } from '#shared/error.ts'

/** Names the caller's own end user, for attribution and their limit (docs/code.md, End users). */
const USER_HEADER = 'x-service-userid'
const USER_ID_CHARS_MAX = 256

/**
 * The caller's own name for the end user whose runs of code count against a limit of their own.
 *
 * @throws ServiceError `string_above_max_length`
 */
export function userIdOf({ headers }: Caller): string | undefined {
  const userId = headers[USER_HEADER]?.toString().trim()
  if (!userId) return undefined
  if (userId.length <= USER_ID_CHARS_MAX) return userId
  const message = `Invalid '${USER_HEADER}': expected at most ${USER_ID_CHARS_MAX} characters.`
  throw new ServiceError('string_above_max_length', message, { param: USER_HEADER })
}
