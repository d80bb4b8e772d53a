import { ResearchBody } from '#schemas/research/body.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/endpoints/endpoint.ts'
import { getModel } from '#services/ingress/endpoints/model.ts'
import { research as kind } from '#shared/kinds/research.ts'
import { decodeResearch } from './decode.ts'

/** Default maximum duration of a research, and the time for the report that is added to it, in milliseconds. */
const DURATION_MS = 1_800_000
const WRITING_MS = 60_000

const PARTIAL_MS = 30_000

/**
 * POST /v1/deep-research (docs/reference/compatibility.md, Deep research): answers a question with a report that cites its sources.
 */
export const research: JobEndpoint = {
  path: '/v1/deep-research',
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
