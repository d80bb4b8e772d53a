export interface ContentFindings {
  /** Categories found in the text. Findings are reported; the text is never cut. */
  readonly detected: readonly ('jailbreak' | 'profanity')[]
}

/**
 * The content filter port: checks finished answers for `content_filter_results` (docs/reference/compatibility.md, Chat answers).
 *
 * An upstream that sends its own results takes precedence: its answers are not checked.
 */
export interface ContentFilter {
  /** Checks the whole text of one choice. Bounded in time; never throws. */
  classify(text: string): ContentFindings
}
