/** Maximum `Retry-After` that known SDKs obey, in milliseconds. For a longer one, SDKs use their own retry delay. */
const SDK_RETRY_AFTER_MS_MAX = 60_000
/** Matches the `User-Agent` of the SDKs of OpenAI and Anthropic, and of libraries that contain them. */
const SDKS = /openai|anthropic|ai-sdk|litellm/i
/** Maximum `Retry-After` for any caller, in milliseconds. */
export const CLIENT_RETRY_AFTER_MS_MAX = 3_600_000

/**
 * Maximum `Retry-After` for a caller, in milliseconds: 60 s for known SDKs, an hour for others. RFC 9110 §10.2.3 has no
 * maximum.
 */
export function retryMsMaxOf(userAgent: string | undefined): number {
  return SDKS.test(userAgent ?? '') ? SDK_RETRY_AFTER_MS_MAX : CLIENT_RETRY_AFTER_MS_MAX
}
