import type { IncomingMessage } from 'node:http'
import type { KeyScope } from '#shared/keys/keys.ts'
import { answerCall } from './answer/answer.ts'
import type { Call, IngressContext } from './call.ts'
import { JOB_ENDPOINTS } from './endpoints/endpoints.ts'
import { listModels, retrieveModel } from './endpoints/models.ts'
import { streamEvents } from './jobs/events.ts'
import { cancelJob, deleteJob, getJob, getResult, listJobs, redriveJob, replayJob } from './jobs/read.ts'
import { listSteps } from './jobs/steps.ts'
import { submitJob } from './jobs/submit.ts'
import { listWebhookSecrets } from './jobs/webhook-secrets.ts'
import type { WireFormat } from './reply/errors.ts'
import { refusePlain, WS_PATH } from './ws/upgrade.ts'

/** One endpoint: a row of the table. */
export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE'
  /** A path ending in `/*` matches everything below it; `:id` is one segment. */
  readonly path: string
  readonly format: WireFormat
  /** What a key must be for; default: calls. */
  readonly scope?: KeyScope
  /** It makes work, so it counts against the limits of its key. */
  readonly isCall?: boolean
  /** It needs a JSON body. */
  readonly hasBody?: boolean
  /** Reads a body of another type. */
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
  /** Answers the call. @throws ServiceError as long as nothing was sent */
  handle(context: IngressContext, call: Call, body: unknown): Promise<void> | void
}

/** Every endpoint of the API. A request goes from its row to a job and back; README lists the same. */
export const ROUTES: readonly Route[] = [
  ...JOB_ENDPOINTS.map((endpoint): Route => {
    const { path, format, readBody } = endpoint
    const handle: Route['handle'] = (context, call, body) => answerCall(context, call, endpoint, body)
    return { method: 'POST', path, format, isCall: true, hasBody: true, ...(readBody && { readBody }), handle }
  }),
  { method: 'GET', path: '/v1/models', format: 'openai', handle: listModels },
  { method: 'GET', path: '/v1/models/*', format: 'openai', handle: retrieveModel },
  { method: 'POST', path: '/v1/jobs', format: 'openai', isCall: true, hasBody: true, handle: submitJob },
  { method: 'GET', path: '/v1/jobs', format: 'openai', handle: listJobs },
  { method: 'GET', path: '/v1/jobs/:id', format: 'openai', handle: getJob },
  { method: 'DELETE', path: '/v1/jobs/:id', format: 'openai', handle: deleteJob },
  { method: 'GET', path: '/v1/jobs/:id/result', format: 'openai', handle: getResult },
  { method: 'GET', path: '/v1/jobs/:id/events', format: 'openai', handle: streamEvents },
  { method: 'GET', path: '/v1/jobs/:id/steps', format: 'openai', handle: listSteps },
  { method: 'POST', path: '/v1/jobs/:id/cancel', format: 'openai', handle: cancelJob },
  { method: 'POST', path: '/v1/jobs/:id/redrive', format: 'openai', isCall: true, handle: redriveJob },
  { method: 'POST', path: '/v1/jobs/:id/replay', format: 'openai', isCall: true, handle: replayJob },
  { method: 'GET', path: '/v1/webhook-secrets', format: 'openai', handle: listWebhookSecrets },
  { method: 'GET', path: WS_PATH, format: 'openai', handle: refusePlain },
]
