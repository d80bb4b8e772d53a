/** Longest `Retry-After` that the usual SDKs obey, in milliseconds: they take a longer one for none, and come when they like. */
const SDK_MS_MAX = 60_000
/** They name themselves so in their `User-Agent`: openai's and Anthropic's own, and those that other libraries bring. */
const SDKS = /openai|anthropic|ai-sdk|litellm/i
/** Longest that anybody is told, in milliseconds. */
export const RETRY_MS_MAX = 3_600_000

/**
 * The longest `Retry-After` that a caller obeys, in milliseconds. Whoever is not known to obey less is told up to an hour:
 * RFC 9110 §10.2.3 knows no longest time.
 */
export function retryMsMaxOf(userAgent: string | undefined): number {
  return SDKS.test(userAgent ?? '') ? SDK_MS_MAX : RETRY_MS_MAX
}
