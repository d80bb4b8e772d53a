import type { FinishReason } from '#schemas/generate.ts'

/** Finish reason as the wire gives it, in the four words of the internal form. `failed`: the server gave up. */
export type WireFinish = FinishReason | 'failed'

/** Words of other servers, without case and punctuation. Any word that is not listed means `stop`. */
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
/** Words that stand for the absence of a reason. */
const NO_REASON = new Set(['', 'null', 'none', 'unspecified', 'finishreasonunspecified'])

/** The finish reason of a choice; undefined if there is none yet. */
export function readFinish(reason: unknown): WireFinish | undefined {
  if (typeof reason !== 'string') return undefined
  const word = reason.toLowerCase().replaceAll(/[^a-z]/g, '')
  return NO_REASON.has(word) ? undefined : (FINISHES.get(word) ?? 'stop')
}
