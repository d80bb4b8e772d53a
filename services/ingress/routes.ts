/*
 * The table of all endpoints, each with its method, path, error format, key scope and handler.
 *
 * `app.ts` serves the table over HTTP, and the API reference and the list of endpoints are generated from it. A request to a row with `isCall`
 * counts against the limits of its key. The row of an endpoint that creates jobs is not written here. That row is derived from the endpoint's
 * `JobEndpoint`, with `answerCall` as the handler.
 */

import type { IncomingMessage } from 'node:http'
import { ADMIN_PATH, type KeyScope } from '#shared/keys/keys.ts'
import { cancelAnyBatch, getAnyBatch, listAllBatches } from './admin/batches.ts'
import {
  discardDeadLetter,
  listDeadLetters,
  listDeliveries,
  redriveDeadLetter,
  redriveDeadLetters,
  retryDelivery,
} from './admin/dead-letters.ts'
import { listFindings } from './admin/findings.ts'
import {
  drainWorker,
  listPauses,
  listPools,
  listWorkers,
  pauseModel,
  pausePool,
  readMetrics,
  resumeModel,
  resumePool,
  undrainWorker,
} from './admin/fleet.ts'
import { bulkCancelJobs, bulkRedriveJobs, cancelAnyJob, getAnyJob, listAllJobs, redriveAnyJob } from './admin/jobs.ts'
import { createAnyKey, getKey, listKeys, revokeKey, rotateAnyKey, updateKey } from './admin/keys.ts'
import { listModelStates } from './admin/models.ts'
import { createAnyProject, getProject, listAudit, listProjects, updateProject } from './admin/projects.ts'
import { cancelActiveRequest, getRequest, listActiveRequests, listFailures, listRequests } from './admin/requests.ts'
import { cancelBatch, createBatch, listBatches, retrieveBatch } from './batches/batches.ts'
import { createFile, readUpload } from './batches/files.ts'
import {
  cancelMessageBatch,
  createMessageBatch,
  deleteMessageBatch,
  listMessageBatches,
  MESSAGE_BATCHES,
  messageBatchResults,
  readRequests,
  retrieveMessageBatch,
} from './batches/messages.ts'
import { batchResults } from './batches/pool/results.ts'
import type { WireFormat } from './body/body.ts'
import type { Call, IngressContext, JobEndpoint } from './calls/call.ts'
import { deleteFile, fileContent, listFiles, retrieveFile } from './calls/files.ts'
import { listJobs } from './calls/job-list.ts'
import { listModels, listWebhookSecrets, readOwnKey, retrieveModel } from './endpoints/account.ts'
import {
  deleteCompletion,
  getCompletion,
  listCompletionMessages,
  listCompletions,
  updateCompletion,
} from './endpoints/chat/stored.ts'
import {
  createConversation,
  createItems,
  deleteConversation,
  deleteItem,
  listItems,
  retrieveConversation,
  retrieveItem,
  updateConversation,
} from './endpoints/responses/conversations.ts'
import { cancelResponse, deleteResponse, getResponse, listInputItems } from './endpoints/responses/read.ts'
import { readHistory, readUsage } from './endpoints/usage.ts'
import { getInput, streamEvents } from './jobs/events.ts'
import { cancelJob, deleteJob, getJob, getResult, listSteps, redriveJob, replayJob, submitJob } from './jobs/jobs.ts'
import { refusePlain, WS_PATH } from './ws/sockets.ts'

interface RouteBase {
  readonly method: 'GET' | 'POST' | 'DELETE'
  /** Path pattern. `:id` stands for one segment, and a final `/*` for everything below the path. */
  readonly path: string
  readonly format: WireFormat
  /** Scope that the key must have. `any`: every valid key may use the route. Default: the scope `calls`. */
  readonly scope?: KeyScope | 'any'
  /** True if the request creates work and therefore counts against the limits of its key. */
  readonly isCall?: boolean
  /** Kind of the job that the request creates. */
  readonly kind?: string
  /** True if the request must have a body, which is JSON unless {@link readBody} is given. */
  readonly hasBody?: boolean
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
}

type Handler = (context: IngressContext, call: Call, body: unknown) => Promise<void> | void

/** A row of the table. The route has either an endpoint, whose calls become jobs, or a handler. */
export type Route = RouteBase & ({ readonly endpoint: JobEndpoint } | { readonly endpoint?: never; handle: Handler })

const ADMIN_ROUTES: readonly Route[] = [
  admin('GET', 'jobs', listAllJobs),
  // The routes `jobs/cancel` and `jobs/redrive` must precede `jobs/:id`, whose pattern also matches their paths.
  { ...admin('POST', 'jobs/cancel', bulkCancelJobs), hasBody: true },
  { ...admin('POST', 'jobs/redrive', bulkRedriveJobs), hasBody: true },
  admin('GET', 'jobs/:id', getAnyJob),
  admin('POST', 'jobs/:id/cancel', cancelAnyJob),
  admin('POST', 'jobs/:id/redrive', redriveAnyJob),
  admin('GET', 'batches', listAllBatches),
  admin('GET', 'batches/:id', getAnyBatch),
  admin('POST', 'batches/:id/cancel', cancelAnyBatch),
  admin('GET', 'dead-letters', listDeadLetters),
  { ...admin('POST', 'dead-letters/redrive', redriveDeadLetters), hasBody: true },
  admin('POST', 'dead-letters/:id/redrive', redriveDeadLetter),
  admin('DELETE', 'dead-letters/:id', discardDeadLetter),
  admin('GET', 'deliveries', listDeliveries),
  admin('POST', 'deliveries/:id/retry', retryDelivery),
  admin('GET', 'keys', listKeys),
  { ...admin('POST', 'keys', createAnyKey), hasBody: true },
  admin('GET', 'keys/:id', getKey),
  { ...admin('POST', 'keys/:id', updateKey), hasBody: true },
  { ...admin('POST', 'keys/:id/rotate', rotateAnyKey), hasBody: true },
  admin('POST', 'keys/:id/revoke', revokeKey),
  admin('GET', 'projects', listProjects),
  { ...admin('POST', 'projects', createAnyProject), hasBody: true },
  admin('GET', 'projects/:id', getProject),
  { ...admin('POST', 'projects/:id', updateProject), hasBody: true },
  admin('GET', 'audit', listAudit),
  admin('GET', 'workers', listWorkers),
  admin('POST', 'workers/:id/drain', drainWorker),
  admin('POST', 'workers/:id/undrain', undrainWorker),
  admin('GET', 'pools', listPools),
  admin('GET', 'models', listModelStates),
  admin('POST', 'pools/:id/pause', pausePool),
  admin('POST', 'pools/:id/resume', resumePool),
  { ...admin('GET', 'findings', listFindings), scope: 'any' },
  admin('GET', 'metrics', readMetrics),
  admin('GET', 'pauses', listPauses),
  admin('POST', 'models/:id/pause', pauseModel),
  admin('POST', 'models/:id/resume', resumeModel),
  { ...admin('GET', 'requests', listRequests), scope: 'any' },
  // The next two routes must precede `requests/:id`, whose pattern also matches their paths.
  { ...admin('GET', 'requests/failures', listFailures), scope: 'any' },
  { ...admin('GET', 'requests/active', listActiveRequests), scope: 'any' },
  { ...admin('POST', 'requests/:id/cancel', cancelActiveRequest), scope: 'any' },
  { ...admin('GET', 'requests/:id', getRequest), scope: 'any' },
]

function admin(method: Route['method'], path: string, handle: Handler): Route {
  return { method, path: `${ADMIN_PATH}/${path}`, format: 'openai', scope: 'admin', handle }
}

const MESSAGE_BATCH_ROUTES: readonly Route[] = [
  { ...messageBatch('POST', '', createMessageBatch), isCall: true, hasBody: true, readBody: readRequests },
  messageBatch('GET', '', listMessageBatches),
  messageBatch('GET', '/:id', retrieveMessageBatch),
  messageBatch('DELETE', '/:id', deleteMessageBatch),
  messageBatch('POST', '/:id/cancel', cancelMessageBatch),
  messageBatch('GET', '/:id/results', messageBatchResults),
]

function messageBatch(method: Route['method'], path: string, handle: Handler): Route {
  return { method, path: MESSAGE_BATCHES + path, format: 'anthropic', handle }
}

const CONVERSATION_ROUTES: readonly Route[] = [
  { ...conversation('POST', '', createConversation), isCall: true, hasBody: true },
  conversation('GET', '/:id', retrieveConversation),
  { ...conversation('POST', '/:id', updateConversation), isCall: true, hasBody: true },
  conversation('DELETE', '/:id', deleteConversation),
  { ...conversation('POST', '/:id/items', createItems), isCall: true, hasBody: true },
  conversation('GET', '/:id/items', listItems),
  conversation('GET', '/:id/items/:item_id', retrieveItem),
  conversation('DELETE', '/:id/items/:item_id', deleteItem),
]

function conversation(method: Route['method'], path: string, handle: Handler): Route {
  return { method, path: `/v1/conversations${path}`, format: 'openai', handle }
}

export function routesOf(endpoints: readonly JobEndpoint[]): readonly Route[] {
  const ofJobs = endpoints.map((endpoint): Route => {
    const { path, format, readBody, kind } = endpoint
    const row = { method: 'POST', path, format, kind: kind.name, isCall: true, hasBody: true } as const
    return { ...row, ...(readBody && { readBody }), endpoint }
  })
  return [...ofJobs, ...OTHER_ROUTES]
}

const OTHER_ROUTES: readonly Route[] = [
  { method: 'GET', path: '/v1/chat/completions', format: 'openai', handle: listCompletions },
  { method: 'GET', path: '/v1/chat/completions/:id', format: 'openai', handle: getCompletion },
  { method: 'POST', path: '/v1/chat/completions/:id', format: 'openai', hasBody: true, handle: updateCompletion },
  { method: 'DELETE', path: '/v1/chat/completions/:id', format: 'openai', handle: deleteCompletion },
  { method: 'GET', path: '/v1/chat/completions/:id/messages', format: 'openai', handle: listCompletionMessages },
  { method: 'GET', path: '/v1/responses/:id', format: 'openai', handle: getResponse },
  { method: 'DELETE', path: '/v1/responses/:id', format: 'openai', handle: deleteResponse },
  { method: 'GET', path: '/v1/responses/:id/input_items', format: 'openai', handle: listInputItems },
  { method: 'POST', path: '/v1/responses/:id/cancel', format: 'openai', handle: cancelResponse },
  ...CONVERSATION_ROUTES,
  { method: 'GET', path: '/v1/models', format: 'openai', handle: listModels },
  { method: 'GET', path: '/v1/models/*', format: 'openai', handle: retrieveModel },
  { method: 'GET', path: '/v1/key', format: 'openai', scope: 'any', handle: readOwnKey },
  { method: 'GET', path: '/v1/usage', format: 'openai', scope: 'any', handle: readUsage },
  { method: 'GET', path: '/v1/history', format: 'openai', scope: 'any', handle: readHistory },
  { method: 'POST', path: '/v1/jobs', format: 'openai', isCall: true, hasBody: true, handle: submitJob },
  { method: 'GET', path: '/v1/jobs', format: 'openai', handle: listJobs },
  { method: 'GET', path: '/v1/jobs/:id', format: 'openai', handle: getJob },
  { method: 'DELETE', path: '/v1/jobs/:id', format: 'openai', handle: deleteJob },
  { method: 'GET', path: '/v1/jobs/:id/input', format: 'openai', handle: getInput },
  { method: 'GET', path: '/v1/jobs/:id/result', format: 'openai', handle: getResult },
  { method: 'GET', path: '/v1/jobs/:id/events', format: 'openai', handle: streamEvents },
  { method: 'GET', path: '/v1/jobs/:id/steps', format: 'openai', handle: listSteps },
  { method: 'POST', path: '/v1/jobs/:id/cancel', format: 'openai', handle: cancelJob },
  { method: 'POST', path: '/v1/jobs/:id/redrive', format: 'openai', isCall: true, handle: redriveJob },
  { method: 'POST', path: '/v1/jobs/:id/replay', format: 'openai', isCall: true, handle: replayJob },
  {
    method: 'POST',
    path: '/v1/files',
    format: 'openai',
    isCall: true,
    hasBody: true,
    readBody: readUpload,
    handle: createFile,
  },
  { method: 'GET', path: '/v1/files', format: 'openai', handle: listFiles },
  { method: 'GET', path: '/v1/files/:id', format: 'openai', handle: retrieveFile },
  { method: 'DELETE', path: '/v1/files/:id', format: 'openai', handle: deleteFile },
  { method: 'GET', path: '/v1/files/:id/content', format: 'openai', handle: fileContent },
  { method: 'POST', path: '/v1/batches', format: 'openai', isCall: true, hasBody: true, handle: createBatch },
  { method: 'GET', path: '/v1/batches', format: 'openai', handle: listBatches },
  { method: 'GET', path: '/v1/batches/:id', format: 'openai', handle: retrieveBatch },
  { method: 'GET', path: '/v1/batches/:id/results', format: 'openai', handle: batchResults },
  { method: 'POST', path: '/v1/batches/:id/cancel', format: 'openai', handle: cancelBatch },
  ...MESSAGE_BATCH_ROUTES,
  { method: 'GET', path: '/v1/webhook-secrets', format: 'openai', handle: listWebhookSecrets },
  { method: 'GET', path: WS_PATH, format: 'openai', handle: refusePlain },
  ...ADMIN_ROUTES,
]
