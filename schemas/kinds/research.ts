import { z } from 'zod'
import { Metadata } from '#schemas/lib/record.ts'

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

/** Limits of a research request. If one is absent, then the limit of the requested effort applies. */
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

export const ResearchPhase = z.enum(['planning', 'searching', 'reading', 'analyzing', 'writing', 'finalizing'])
export type ResearchPhase = z.infer<typeof ResearchPhase>

/** A citation in the report, as sent to clients, with the position of its quote in the source. */
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

const MESSAGES_MAX = 1_000

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const Domains = z.array(z.string().min(1).max(DOMAIN_CHARS_MAX)).max(DOMAINS_MAX).nullish()

export const ResearchMessage = z.looseObject({
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content: z.union([z.string(), z.array(TextPart)]),
})
export type ResearchMessage = z.infer<typeof ResearchMessage>

/**
 * Body of `POST /v1/deep-research` (docs/reference/compatibility.md, Deep research): a chat request with limits for the research. Unknown fields are
 * ignored. `null` means absent.
 */
export const ResearchBody = z.looseObject({
  model: z.string().min(1).describe('Research model id or alias'),
  messages: z
    .array(ResearchMessage)
    .min(1)
    .max(MESSAGES_MAX)
    .describe('Messages, oldest first. The last user message is the question'),
  stream: z.boolean().nullish().describe('Stream progress and the report as server-sent events. Default: false'),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  temperature: z
    .number()
    .min(0, 'decimal')
    .max(2, 'decimal')
    .nullish()
    .describe('Sampling temperature of the model that writes the report'),
  max_tokens: z.int().min(1).nullish().describe('Maximum length of the report, in tokens'),
  max_completion_tokens: z.int().min(1).nullish().describe('Alias of max_tokens. Takes precedence'),
  reasoning_effort: z
    .enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'])
    .nullish()
    .describe('Research effort, which selects the default limits'),
  max_sources: z.int().min(1).max(SOURCES_MAX).nullish().describe('Maximum sources to read'),
  max_duration_seconds: z
    .int()
    .min(1)
    .max(86_400)
    .nullish()
    .describe('Time limit, in seconds. After it, the report is written from the evidence found so far'),
  max_tool_calls: z.int().min(1).max(100).nullish().describe('Maximum searches'),
  on_cancel: z
    .enum(['discard', 'partial'])
    .nullish()
    .describe(
      'After a cancel: partial writes a report from the evidence found so far; discard returns no result. Default: discard',
    ),
  domains: z
    .looseObject({ allow: Domains, deny: Domains })
    .nullish()
    .describe('Domains to read, and domains to exclude'),
  n: z.int().min(1).max(128).nullish(),
  tools: z.array(z.unknown()).max(128).nullish(),
  logprobs: z.boolean().nullish(),
  metadata: Metadata.nullish().describe('At most 16 pairs of text'),
})
export type ResearchBody = z.infer<typeof ResearchBody>
