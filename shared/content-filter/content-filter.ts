export interface ContentFindings {
  /** Categories found in the text. The text itself is never changed. */
  readonly detected: readonly ('jailbreak' | 'profanity')[]
}

/**
 * The content filter port. A filter checks finished answers, for the field `content_filter_results` (docs/reference/compatibility.md, Chat answers).
 * If an upstream sends this field itself, then its answers are not checked.
 */
export interface ContentFilter {
  /** Checks the whole text of one choice. Takes a bounded time and never throws. */
  classify(text: string): ContentFindings
}
