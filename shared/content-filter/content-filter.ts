/** What a filter found in one answer; only categories it looked at and that have something to say. */
export interface ContentFindings {
  /** The text holds it. A finding is told, never cut. */
  readonly detected: readonly ('jailbreak' | 'profanity')[]
}

/**
 * The content filter port: looks at finished answers, for `content_filter_results` (docs/protocol.md, Chat answers).
 *
 * An upstream that sends its own results wins: its answers are not looked at.
 */
export interface ContentFilter {
  /** Looks at one choice's whole text. Bounded in time; never throws. */
  classify(text: string): ContentFindings
}
