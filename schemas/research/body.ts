import { z } from 'zod'
import { Metadata } from '#schemas/record.ts'
import { SOURCES_MAX } from './research.ts'

/** Messages of one conversation. */
const MESSAGES_MAX = 1_000
/** Names in a list of domains. */
const DOMAINS_MAX = 100
/** Characters of a host name (RFC 1035 §2.3.4). */
const DOMAIN_CHARS_MAX = 253

const TextPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const Domains = z.array(z.string().min(1).max(DOMAIN_CHARS_MAX)).max(DOMAINS_MAX).nullish()

/** One message of the conversation: text, whoever says it. */
export const ResearchMessage = z.looseObject({
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content: z.union([z.string(), z.array(TextPart)]),
})
export type ResearchMessage = z.infer<typeof ResearchMessage>

/**
 * The wire shape of `POST /v1/deep-research` (docs/protocol.md, Deep research): that of a chat, and bounds of the research.
 * Unknown fields are ignored; `null` stands for absent.
 */
export const ResearchBody = z.looseObject({
  model: z.string().min(1),
  messages: z.array(ResearchMessage).min(1).max(MESSAGES_MAX),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  temperature: z.number().min(0, 'decimal').max(2, 'decimal').nullish(),
  max_tokens: z.int().min(1).nullish().describe('Length of the report'),
  max_completion_tokens: z.int().min(1).nullish().describe('The same; counts before max_tokens'),
  reasoning_effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).nullish(),
  max_sources: z.int().min(1).max(SOURCES_MAX).nullish(),
  max_duration_seconds: z
    .int()
    .min(1)
    .max(86_400)
    .nullish()
    .describe('After it the report is written from what there is'),
  max_tool_calls: z.int().min(1).max(100).nullish().describe('Searches'),
  on_cancel: z
    .enum(['discard', 'partial'])
    .nullish()
    .describe('partial: a cancelled research writes the report that its evidence supports; default discard'),
  domains: z.looseObject({ allow: Domains, deny: Domains }).nullish(),
  n: z.int().min(1).max(128).nullish(),
  tools: z.array(z.unknown()).max(128).nullish(),
  logprobs: z.boolean().nullish(),
  metadata: Metadata.nullish(),
})
export type ResearchBody = z.infer<typeof ResearchBody>
