import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Header with the id of the caller's end user, for attribution and a limit per user (docs/guides/code.md, End users). */
const USER_HEADER = 'x-service-userid'
const USER_ID_CHARS_MAX = 256

/**
 * Id of the end user whose code runs have their own rate limit.
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
