import { hasModels } from '#schemas/job.ts'
import type { Caller, IngressContext, JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel } from '#services/ingress/calls/endpoint.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { code } from './code.ts'
import { embeddings } from './embeddings.ts'
import { chatCompletions, completions, messages, messagesCount } from './generate.ts'
import { moderations } from './moderations.ts'
import { rerank } from './rerank.ts'
import { research } from './research.ts'
import { responses, responsesCount } from './responses/responses.ts'
import { speech } from './speech.ts'
import { transcriptions, translations } from './transcription/transcription.ts'

/**
 * Every endpoint whose calls become jobs. Each can be called over HTTP, over a WebSocket and in `POST /v1/jobs`. The
 * header `Prefer: respond-async` or `Idempotency-Key` makes the job of a call durable.
 */
export const JOB_ENDPOINTS: readonly JobEndpoint[] = [
  chatCompletions,
  completions,
  messages,
  messagesCount,
  responses,
  responsesCount,
  embeddings,
  rerank,
  moderations,
  transcriptions,
  translations,
  speech,
  code,
  research,
]

export function findEndpoint({ endpoints }: Pick<IngressContext, 'endpoints'>, path: string): JobEndpoint {
  const endpoint = endpoints.find((known) => known.path === path)
  if (endpoint) return endpoint
  const known = endpoints.map((row) => row.path).join(', ')
  throw new ServiceError('invalid_value', `Unknown endpoint. Expected one of ${known}.`, { param: 'endpoint' })
}

export function requireModelOf(endpoint: JobEndpoint, context: IngressContext, caller: Caller, model: string): void {
  const { pool } = endpoint.kind
  if (endpoint.requireModel) endpoint.requireModel(context, caller, model)
  else if (hasModels(pool)) getModel(context, caller, model, pool)
}
