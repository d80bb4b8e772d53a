import { z } from 'zod'
import { Metadata } from '#schemas/record.ts'
import { SOURCES_MAX } from './research.ts'

const MESSAGES_MAX = 1_000
const DOMAINS_MAX = 100
/** Maximum characters of a host name (RFC 1035 §2.3.4). */
const DOMAIN_CHARS_MAX = 253

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
