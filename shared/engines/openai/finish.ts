import type { FinishReason } from '#schemas/generate.ts'

/** Finish reason of an upstream as one of the four internal values. `failed`: the server gave up. */
export type WireFinish = FinishReason | 'failed'

/** Finish reasons of other servers, in lower case without punctuation. Any other value means `stop`. */
const SYNONYMS: Readonly<Record<Exclude<WireFinish, 'stop'>, readonly string[]>> = {
  length: [
    ...['length', 'maxtokens', 'maxtokensreached', 'maxoutputtokens', 'maxnewtokens', 'maxlength', 'modellength'],
    ...['modelcontextwindowexceeded', 'contextlength', 'contextlengthexceeded', 'contextwindowexceeded', 'tokenlimit'],
    ...['limit', 'errorlimit', 'truncated', 'incomplete', 'lengthlimit', 'lengthcapped', 'outoftokens'],
  ],
  content_filter: [
    ...['contentfilter', 'contentfiltered', 'safety', 'recitation', 'blocklist', 'prohibitedcontent', 'spii'],
    ...[
      'imagesafety',
      'guardrailintervened',
      'guardrail',
      'guardrails',
      'refusal',
      'refused',
      'sensitive',
      'moderation',
    ],
    ...['blocked', 'filtered', 'filter', 'errortoxic', 'language', 'contentpolicy', 'contentpolicyviolation'],
  ],
  tool_calls: ['toolcalls', 'toolcall', 'tooluse', 'functioncall', 'functioncalls', 'toolscalls'],
  failed: [
    ...['abort', 'aborted', 'error', 'failed', 'failure', 'cancelled', 'canceled', 'timeout', 'networkerror'],
    ...['insufficientsystemresource', 'malformedfunctioncall', 'internalerror', 'servererror', 'engineoverloaded'],
  ],
}
const FINISHES = new Map(
  Object.entries(SYNONYMS).flatMap(([finish, words]) => words.map((word) => [word, finish as WireFinish] as const)),
)
/** Values that mean "no finish reason yet". */
const NO_REASON = new Set(['', 'null', 'none', 'unspecified', 'finishreasonunspecified'])

/** The finish reason of a choice; undefined if there is none yet. */
export function readFinish(reason: unknown): WireFinish | undefined {
  if (typeof reason !== 'string') return undefined
  const word = reason.toLowerCase().replaceAll(/[^a-z]/g, '')
  return NO_REASON.has(word) ? undefined : (FINISHES.get(word) ?? 'stop')
}
