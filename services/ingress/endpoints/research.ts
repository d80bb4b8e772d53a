import {
  CONTEXT_CHARS_MAX,
  CONTEXT_TURNS_MAX,
  QUESTION_CHARS_MAX,
  ResearchBody,
  type ResearchEffort,
  type ResearchMessage,
  type ResearchRequest,
} from '#schemas/kinds/research.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel } from '#services/ingress/calls/endpoint.ts'
import { research as kind } from '#shared/kinds/research/research.ts'

/** Default maximum duration of a research run, in ms. {@link WRITING_MS} is added, so that the report can still be written. */
const DURATION_MS = 1_800_000
const WRITING_MS = 60_000

const PARTIAL_MS = 30_000

/**
 * POST /v1/deep-research (docs/reference/compatibility.md, Deep research): answers a question with a report that cites its sources.
 */
export const research: JobEndpoint = {
  path: '/v1/deep-research',
  async describe() {
    const { ChatCompletionChunk, ResearchAnswer } = await import('#schemas/answers/chat.ts')
    return {
      id: 'createResearch',
      tag: 'Tools',
      summary: 'Create a research report with citations',
      guide: 'deep-research',
      body: { ResearchRequest: ResearchBody },
      answer: {
        description:
          'A chat completion whose message is the report. With `stream: true`, progress events and then the text of the report.',
        json: { ResearchCompletion: ResearchAnswer },
        events: { ChatCompletionChunk },
      },
    }
  },
  format: 'openai',
  kind,
  isDurable: true,
  canStream: () => true,
  prepare(context, caller, body) {
    const asked = parseBody(ResearchBody, body, 'openai')
    const model = getModel(context, caller, asked.model, 'research')
    const request = decodeResearch(asked, model.id)
    const { max_seconds } = request.limits
    return {
      model: model.id,
      named: asked.model,
      body: request,
      stream: asked.stream ?? false,
      timeoutMs: (max_seconds === undefined ? DURATION_MS : max_seconds * 1_000) + WRITING_MS,
      encode: { include_usage: asked.stream_options?.include_usage === true },
      metadata: asked.metadata ?? undefined,
      ...(asked.on_cancel === 'partial' && { partialMs: PARTIAL_MS }),
    }
  },
}

/**
 * Converts a request to a `ResearchRequest`, the body of the job. The last message is the question, and the messages
 * before it are context.
 *
 * @param model Id of the research model in the catalogue
 * @throws ServiceError for options that a report does not support, and if the last message is not a question
 */
function decodeResearch(body: ResearchBody, model: string): ResearchRequest {
  requireSupported(body)
  const { allow, deny } = body.domains ?? {}
  const report = body.max_completion_tokens ?? body.max_tokens
  const { temperature } = body
  return {
    model,
    question: questionOf(body.messages),
    context: contextOf(body.messages),
    effort: effortOf(body.reasoning_effort),
    limits: limitsOf(body),
    domains: { allow: allow ?? [], deny: deny ?? [] },
    citations: 'strict',
    ...(report != null && { report_tokens: report }),
    ...(temperature != null && { temperature }),
  }
}

function requireSupported({ n, tools, logprobs }: ResearchBody): void {
  if (n != null && n > 1) refuse('unsupported_value', 'n', "A research returns one report: 'n' must be 1.")
  if (tools != null && tools.length > 0) {
    refuse('unsupported_parameter', 'tools', 'Research does not support tools. Use POST /v1/chat/completions instead.')
  }
  if (logprobs === true) refuse('unsupported_parameter', 'logprobs', 'A research report has no log probabilities.')
}

function questionOf(messages: readonly ResearchMessage[]): string {
  const at = messages.length - 1
  const last = messages[at] as ResearchMessage
  if (last.role !== 'user') {
    refuse('invalid_value', `messages[${at}].role`, "The last message must be the question, of role 'user'.")
  }
  const param = `messages[${at}].content`
  const question = textOf(last).trim()
  if (question === '') refuse('invalid_value', param, 'The question is empty. Send the question as the last message.')
  if (question.length <= QUESTION_CHARS_MAX) return question
  const rule = `Expected a question with maximum length ${QUESTION_CHARS_MAX}, but got one with length ${question.length}.`
  return refuse('string_above_max_length', param, `Invalid '${param}': string too long. ${rule}`)
}

function contextOf(messages: readonly ResearchMessage[]): ResearchRequest['context'] {
  const turns = messages.slice(0, -1).map((message) => {
    const role = message.role === 'developer' ? 'system' : message.role
    return { role, text: textOf(message).trim().slice(0, CONTEXT_CHARS_MAX) }
  })
  return turns.filter(({ text }) => text !== '').slice(-CONTEXT_TURNS_MAX)
}

function textOf({ content }: ResearchMessage): string {
  return typeof content === 'string' ? content : content.map(({ text }) => text).join('\n')
}

function limitsOf({ max_sources, max_duration_seconds, max_tool_calls }: ResearchBody): ResearchRequest['limits'] {
  return {
    ...(max_sources != null && { max_sources }),
    ...(max_duration_seconds != null && { max_seconds: max_duration_seconds }),
    ...(max_tool_calls != null && { max_searches: max_tool_calls }),
  }
}

function effortOf(asked: ResearchBody['reasoning_effort']): ResearchEffort {
  switch (asked) {
    case 'none':
    case 'minimal':
    case 'low':
      return 'low'
    case 'high':
    case 'xhigh':
    case 'max':
      return 'high'
    default:
      return 'medium'
  }
}
