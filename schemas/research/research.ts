import { z } from 'zod'

/**
 * The internal form of deep research: a question with its limits, and the events of a run.
 *
 * The report is Markdown. Each claim ends with citation markers such as `[1]`. Each marker has an annotation with the position of the quoted sentence
 * in the stored text of the source.
 */

/** Research effort, which selects the limits that the request does not set. */
export const ResearchEffort = z.enum(['low', 'medium', 'high'])
export type ResearchEffort = z.infer<typeof ResearchEffort>

/** Maximum characters of the question, which is the last user message. */
export const QUESTION_CHARS_MAX = 8_000
/** Maximum number of earlier messages that are sent with the question, and maximum characters of each. */
export const CONTEXT_TURNS_MAX = 20
export const CONTEXT_CHARS_MAX = 4_000
export const SOURCES_MAX = 50
const DOMAINS_MAX = 100
/** Maximum characters of a host name (RFC 1035 §2.3.4). */
const DOMAIN_CHARS_MAX = 253

const Domain = z
  .string()
  .min(1)
  .max(DOMAIN_CHARS_MAX)
  .describe('Host name, including its subdomains. "local" is the local corpus')

export const ResearchDomains = z.strictObject({
  allow: z.array(Domain).max(DOMAINS_MAX).default([]).describe('Allowed hosts. Empty: all'),
  deny: z.array(Domain).max(DOMAINS_MAX).default([]).describe('Denied hosts. Takes precedence over allow'),
})
export type ResearchDomains = z.infer<typeof ResearchDomains>

/** Limits of the request. If a limit is absent, then the limit of the requested effort applies. */
export const ResearchLimits = z.strictObject({
  max_sources: z.int().min(1).max(SOURCES_MAX).optional().describe('Maximum sources to read'),
  max_searches: z.int().min(1).max(100).optional(),
  max_seconds: z
    .int()
    .min(1)
    .max(86_400)
    .optional()
    .describe('Time limit, in seconds. After it, the report is written from the evidence found so far'),
  max_tokens: z.int().min(1).optional().describe('Maximum tokens of all models together'),
  max_cost_usd: z.number().min(0).optional().describe('Maximum cost of paid searches, in US dollars'),
})
export type ResearchLimits = z.infer<typeof ResearchLimits>

export const ResearchRequest = z.strictObject({
  model: z.string().describe('Model name of the request'),
  question: z.string().min(1).max(QUESTION_CHARS_MAX),
  context: z
    .array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), text: z.string().max(CONTEXT_CHARS_MAX) }))
    .max(CONTEXT_TURNS_MAX)
    .default([])
    .describe('Messages before the question, oldest first'),
  effort: ResearchEffort.default('medium'),
  limits: ResearchLimits.default({}),
  domains: ResearchDomains.default({ allow: [], deny: [] }),
  language: z.string().max(35).optional().describe('BCP 47 language tag, for search services that support languages'),
  report_tokens: z.int().min(1).optional().describe('Maximum length of the report, in tokens of about four characters'),
  temperature: z.number().min(0).max(2).optional().describe('Temperature of the model that writes the report'),
  citations: z
    .enum(['strict'])
    .default('strict')
    .describe('strict: a claim without a supporting quote is replaced by a quote or omitted'),
})
export type ResearchRequest = z.infer<typeof ResearchRequest>

/** Phase of a run, for progress display. */
export const ResearchPhase = z.enum(['planning', 'searching', 'reading', 'analyzing', 'writing', 'finalizing'])
export type ResearchPhase = z.infer<typeof ResearchPhase>

/** A citation in the report, in wire format, with the position of its quote in the source. */
export const ResearchAnnotation = z.strictObject({
  type: z.literal('url_citation'),
  url_citation: z.strictObject({
    start_index: z.int().min(0).describe('Start of the marker in the report, in code points'),
    end_index: z.int().min(0).describe('End of the marker in the report, exclusive, in code points'),
    title: z.string(),
    url: z.string(),
    quote: z.string().describe('Verbatim sentence that supports the claim'),
    source_sha256: z.string().describe('SHA-256 of the stored source text'),
    source_start: z.int().min(0).describe('Start of the quote in the source text, in code points'),
    source_end: z.int().min(0).describe('End of the quote in the source text, exclusive, in code points'),
  }),
})
export type ResearchAnnotation = z.infer<typeof ResearchAnnotation>

export const ResearchSource = z.strictObject({
  title: z.string(),
  url: z.string(),
  snippet: z.string(),
  date: z.string().optional().describe('ISO 8601 date, if the source has one'),
})
export type ResearchSource = z.infer<typeof ResearchSource>

export const ResearchStop = z.enum(['answered', 'no_evidence', 'budget', 'deadline', 'cancelled'])
export type ResearchStop = z.infer<typeof ResearchStop>

/** Usage of a run. Tokens are the sum over all models, or 0 if the run used no model. */
export const ResearchUsage = z.strictObject({
  input_tokens: z.int().min(0),
  output_tokens: z.int().min(0),
  searches: z.int().min(0),
  pages: z.int().min(0),
  cost_usd: z.number().min(0),
})
export type ResearchUsage = z.infer<typeof ResearchUsage>

export const ResearchQuality = z.strictObject({
  writer: z
    .enum(['extractive', 'model'])
    .describe('extractive: verbatim sentences of the sources. model: written by a model'),
  supported: z.int().min(0).describe('Claims in the report with supporting quotes'),
  quoted: z.int().min(0).describe('Claims that failed verification and were replaced by the quote'),
  dropped: z.int().min(0).describe('Claims that failed verification and were omitted'),
  unread: z.int().min(0).describe('Sources that could not be read'),
  failed_searches: z.int().min(0),
  gaps: z.array(z.string()).describe('Parts of the question that no source covers'),
})
export type ResearchQuality = z.infer<typeof ResearchQuality>

/** Events of a run. Progress comes first, followed by the report text, the annotations, the sources and the usage. The last event is `end`. */
export const ResearchEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('progress'),
    sequence: z.int().min(1).describe('Counts from 1. A resumed run repeats its numbers'),
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
    finish_reason: z.enum(['stop', 'length']).describe('length: a limit ended the report early'),
    quality: ResearchQuality,
  }),
])
export type ResearchEvent = z.infer<typeof ResearchEvent>
