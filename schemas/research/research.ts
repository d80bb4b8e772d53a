import { z } from 'zod'

/**
 * The internal form of deep research: a question with its limits, and what a run says until its report is whole.
 *
 * The report is Markdown. A claim of it ends in markers such as `[1]`, one annotation each, which point at the quoted sentence
 * in the snapshot of the source that was read.
 */

/** How much work a question is worth; picks the budget where the request does not name one. */
export const ResearchEffort = z.enum(['low', 'medium', 'high'])
export type ResearchEffort = z.infer<typeof ResearchEffort>

/** Characters of the question, which is the last turn of the user. */
export const QUESTION_CHARS_MAX = 8_000
/** Earlier turns that travel with a question, and characters of each. */
export const CONTEXT_TURNS_MAX = 20
export const CONTEXT_CHARS_MAX = 4_000
/** Sources a report may cite. */
export const SOURCES_MAX = 50
/** Names in a list of domains. */
const DOMAINS_MAX = 100
/** Characters of a host name (RFC 1035 §2.3.4). */
const DOMAIN_CHARS_MAX = 253

const Domain = z
  .string()
  .min(1)
  .max(DOMAIN_CHARS_MAX)
  .describe('A host name; it stands for its subdomains too. The local corpus is "local"')

/** Which hosts may be read. */
export const ResearchDomains = z.strictObject({
  allow: z.array(Domain).max(DOMAINS_MAX).default([]).describe('Empty: all'),
  deny: z.array(Domain).max(DOMAINS_MAX).default([]).describe('Counts before allow'),
})
export type ResearchDomains = z.infer<typeof ResearchDomains>

/** Bounds that the caller sets below those of the effort. Absent: what the effort gives. */
export const ResearchLimits = z.strictObject({
  max_sources: z.int().min(1).max(SOURCES_MAX).optional().describe('Sources that are read'),
  max_searches: z.int().min(1).max(100).optional(),
  max_seconds: z.int().min(1).max(86_400).optional().describe('After it the report is written from what there is'),
  max_tokens: z.int().min(1).optional().describe('Tokens of all models together'),
  max_cost_usd: z.number().min(0).optional().describe('Of searches that cost money'),
})
export type ResearchLimits = z.infer<typeof ResearchLimits>

/** One question to be researched. */
export const ResearchRequest = z.strictObject({
  model: z.string().describe('Names the research, as the caller asked for it'),
  question: z.string().min(1).max(QUESTION_CHARS_MAX),
  context: z
    .array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), text: z.string().max(CONTEXT_CHARS_MAX) }))
    .max(CONTEXT_TURNS_MAX)
    .default([])
    .describe('Turns before the question, oldest first'),
  effort: ResearchEffort.default('medium'),
  limits: ResearchLimits.default({}),
  domains: ResearchDomains.default({ allow: [], deny: [] }),
  language: z.string().max(35).optional().describe('BCP 47, for backends that search by language'),
  report_tokens: z.int().min(1).optional().describe('Length of the report, in tokens of about four characters'),
  temperature: z.number().min(0).max(2).optional().describe('Of the model that writes, where there is one'),
  citations: z
    .enum(['strict'])
    .default('strict')
    .describe('strict: what is not supported by a quote is quoted instead, or left out'),
})
export type ResearchRequest = z.infer<typeof ResearchRequest>

/** What a run is doing, for people who wait. */
export const ResearchPhase = z.enum(['planning', 'searching', 'reading', 'analyzing', 'writing', 'finalizing'])
export type ResearchPhase = z.infer<typeof ResearchPhase>

/** A cited span of the report, in the shape of the wire, and where its quote stands. */
export const ResearchAnnotation = z.strictObject({
  type: z.literal('url_citation'),
  url_citation: z.strictObject({
    start_index: z.int().min(0).describe('Code points of the report before the marker'),
    end_index: z.int().min(0).describe('Code points up to the end of the marker: [start, end)'),
    title: z.string(),
    url: z.string(),
    quote: z.string().describe('The sentence that supports the claim, character for character'),
    source_sha256: z.string().describe('Of the text that was read'),
    source_start: z.int().min(0).describe('Code points of that text before the quote'),
    source_end: z.int().min(0),
  }),
})
export type ResearchAnnotation = z.infer<typeof ResearchAnnotation>

/** A source that was found, as chat searches list them. */
export const ResearchSource = z.strictObject({
  title: z.string(),
  url: z.string(),
  snippet: z.string(),
  date: z.string().optional().describe('ISO 8601, where the source has one'),
})
export type ResearchSource = z.infer<typeof ResearchSource>

/** Why the search for evidence ended. */
export const ResearchStop = z.enum(['answered', 'no_evidence', 'budget', 'deadline', 'cancelled'])
export type ResearchStop = z.infer<typeof ResearchStop>

/** What was used. Tokens are those of all models of the run; without a model there are none. */
export const ResearchUsage = z.strictObject({
  input_tokens: z.int().min(0),
  output_tokens: z.int().min(0),
  searches: z.int().min(0),
  pages: z.int().min(0),
  cost_usd: z.number().min(0),
})
export type ResearchUsage = z.infer<typeof ResearchUsage>

/** How well the report is founded. */
export const ResearchQuality = z.strictObject({
  writer: z.enum(['extractive', 'model']).describe('extractive: sentences of the sources, verbatim'),
  supported: z.int().min(0).describe('Claims in the report, each with its quotes'),
  quoted: z.int().min(0).describe('Claims that failed the check and are given as the quote itself'),
  dropped: z.int().min(0).describe('Claims that failed and were left out'),
  unread: z.int().min(0).describe('Sources that were found and could not be read'),
  failed_searches: z.int().min(0),
  gaps: z.array(z.string()).describe('What of the question no source speaks of'),
})
export type ResearchQuality = z.infer<typeof ResearchQuality>

/** One step of a run, in order: progress, then the report in pieces, then what belongs to it, then `end`. */
export const ResearchEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('progress'),
    sequence: z.int().min(1).describe('Counts from 1; a run that is taken up again says the same numbers again'),
    phase: ResearchPhase,
    percent: z.int().min(0).max(100),
    message: z.string(),
    queries: z.int().min(0),
    sources_found: z.int().min(0),
    sources_read: z.int().min(0),
  }),
  z.strictObject({ type: z.literal('text'), text: z.string() }),
  z.strictObject({ type: z.literal('annotations'), annotations: z.array(ResearchAnnotation) }),
  z.strictObject({ type: z.literal('search_results'), results: z.array(ResearchSource) }),
  z.strictObject({ type: z.literal('usage'), usage: ResearchUsage }),
  z.strictObject({
    type: z.literal('end'),
    stop_reason: ResearchStop,
    finish_reason: z.enum(['stop', 'length']).describe('length: a bound ended it before it was done'),
    quality: ResearchQuality,
  }),
])
export type ResearchEvent = z.infer<typeof ResearchEvent>
