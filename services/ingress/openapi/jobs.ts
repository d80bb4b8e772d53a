import { z } from 'zod'
import { BatchResults, ListBatches, ListMessageBatches } from '#schemas/batches/batch.ts'
import { ListFiles } from '#schemas/files.ts'
import { ListJobs } from '#schemas/jobs.ts'
import { ListModels } from '#schemas/models.ts'
import { ReadHistory, ReadUsage } from '#schemas/usage.ts'
import { AFTER_EVENT, type Answer, type Operations, ok } from './operation.ts'

const ACCEPTED: Answer = { description: 'The new job.', json: ['Job'], headers: ['location', 'retry-after'] }

export const JOBS: Operations = {
  'POST /v1/jobs': {
    ...{ id: 'submitJob', tag: 'Jobs', guide: 'jobs', summary: 'Submit a job' },
    description: 'Runs a request to another endpoint as a durable background job.',
    headers: ['idempotency-key'],
    body: 'SubmitJobRequest',
    answers: { 202: ACCEPTED },
  },
  'GET /v1/jobs': {
    ...{ id: 'listJobs', tag: 'Jobs', guide: 'jobs', summary: 'List jobs' },
    description:
      'Jobs of the project, newest first by default. A page may have fewer jobs than `limit`: continue while `has_more` is true.',
    query: ListJobs.omit({ beta: true }),
    pairs: 'metadata',
    answers: ok('A page of jobs.', 'JobList'),
  },
  'GET /v1/jobs/:id': {
    ...{ id: 'getJob', tag: 'Jobs', guide: 'jobs', summary: 'Retrieve a job' },
    description: 'With `wait`, the request returns when the job ends or the wait time has passed (long polling).',
    query: z.object({
      wait: z
        .int()
        .min(0)
        .max(60)
        .optional()
        .describe('Maximum time to wait for the end of the job, in seconds. Default: 0'),
    }),
    answers: ok('The job.', 'Job'),
    failures: [429],
  },
  'DELETE /v1/jobs/:id': {
    ...{ id: 'deleteJob', tag: 'Jobs', guide: 'jobs', summary: 'Delete a job' },
    description: 'Deletes the job with its request, result and events. The job must have ended.',
    answers: ok('The job is deleted.', 'JobDeleted'),
    failures: [409],
  },
  'GET /v1/jobs/:id/result': {
    ...{ id: 'getJobResult', tag: 'Jobs', guide: 'jobs', summary: 'Retrieve the result of a job' },
    description:
      'Returns the response that a synchronous call to the endpoint of the job would have returned. For a failed job, this is the error.',
    answers: { 200: { description: 'The result.', json: [], media: ['text/plain'] } },
    failures: [408, 409, 410, 413, 415, 422, 429, 502, 504, 529],
  },
  'GET /v1/jobs/:id/input': {
    ...{ id: 'getJobInput', tag: 'Jobs', guide: 'jobs', summary: 'Retrieve the input of a job' },
    description: 'Returns the body of the request as the caller sent it. A body above 65,536 characters is truncated.',
    answers: ok('The input.', 'JobInput'),
  },
  'GET /v1/jobs/:id/events': {
    ...{ id: 'followJob', tag: 'Jobs', guide: 'jobs', summary: 'Stream the events of a job' },
    description:
      'Server-sent events with sequence numbers, from the first event until the job ends. To resume a stream, send `Last-Event-ID` or `starting_after`.',
    headers: ['last-event-id'],
    query: AFTER_EVENT,
    answers: {
      200: { description: 'The events after the given sequence number.', events: 'JobEvent' },
      204: { description: 'The job has ended and has no event after the given sequence number.' },
    },
    failures: [429],
  },
  'GET /v1/jobs/:id/steps': {
    ...{ id: 'listJobSteps', tag: 'Jobs', guide: 'jobs', summary: 'List the steps of a composed job' },
    description:
      'Each step is an operation outside the job, such as a search or a child job, with its input and output.',
    query: z.object({
      after: z.int().min(0).max(1_000_000).optional().describe('Cursor: last_number of the previous page'),
      limit: z.int().min(1).max(20).optional().describe('Maximum steps per page. Default: 20'),
    }),
    answers: ok('A page of steps.', 'StepList'),
  },
  'POST /v1/jobs/:id/cancel': {
    ...{ id: 'cancelJob', tag: 'Jobs', guide: 'jobs', summary: 'Cancel a job' },
    answers: ok('The job. The status of a running job is `cancelling` until its worker has stopped.', 'Job'),
    failures: [409],
  },
  'POST /v1/jobs/:id/redrive': {
    ...{ id: 'redriveJob', tag: 'Jobs', guide: 'jobs', summary: 'Redrive a job' },
    description: 'Runs a failed, cancelled or expired job again as a new job.',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
  'POST /v1/jobs/:id/replay': {
    ...{ id: 'replayJob', tag: 'Jobs', guide: 'jobs', summary: 'Replay a composed job' },
    description:
      'Runs a composed job again as a new job. Recorded step outputs replace all calls to models, searches and other jobs.',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
  'GET /v1/ws': {
    ...{ id: 'openWebSocket', tag: 'Jobs', guide: 'websocket', summary: 'Open a WebSocket' },
    description: 'Runs many requests and job subscriptions over one connection. Subprotocol: `inference.v1`.',
    answers: { 101: { description: 'Switching to the WebSocket protocol.' } },
  },
}

export const BATCHES: Operations = {
  'POST /v1/files': {
    ...{ id: 'uploadFile', tag: 'Batches', guide: 'batches', summary: 'Upload a file' },
    form: 'multipart/form-data',
    body: 'FileForm',
    answers: ok('The file.', 'File'),
  },
  'GET /v1/files': {
    ...{ id: 'listFiles', tag: 'Batches', guide: 'batches', summary: 'List files' },
    description: 'Files of the project. Newest first by default.',
    query: ListFiles,
    answers: ok('A page of files.', 'FileList'),
  },
  'GET /v1/files/:id': {
    ...{ id: 'getFile', tag: 'Batches', guide: 'batches', summary: 'Retrieve a file' },
    answers: ok('The file.', 'File'),
  },
  'DELETE /v1/files/:id': {
    ...{ id: 'deleteFile', tag: 'Batches', guide: 'batches', summary: 'Delete a file' },
    answers: ok('The file is deleted.', 'FileDeleted'),
  },
  'GET /v1/files/:id/content': {
    ...{ id: 'getFileContent', tag: 'Batches', guide: 'batches', summary: 'Retrieve the content of a file' },
    answers: { 200: { description: 'The content, unchanged.', media: ['application/octet-stream'] } },
  },
  'POST /v1/batches': {
    ...{ id: 'createBatch', tag: 'Batches', guide: 'batches', summary: 'Create a batch' },
    description: 'Runs up to 50,000 requests of an uploaded JSONL file.',
    headers: ['idempotency-key'],
    body: 'CreateBatchRequest',
    answers: ok('The batch.', 'Batch'),
  },
  'GET /v1/batches': {
    ...{ id: 'listBatches', tag: 'Batches', guide: 'batches', summary: 'List batches' },
    description: 'Batches of the project, newest first.',
    query: ListBatches,
    answers: ok('A page of batches.', 'BatchList'),
  },
  'GET /v1/batches/:id': {
    ...{ id: 'getBatch', tag: 'Batches', guide: 'batches', summary: 'Retrieve a batch' },
    answers: ok('The batch.', 'Batch'),
  },
  'GET /v1/batches/:id/results': {
    ...{ id: 'getBatchResults', tag: 'Batches', guide: 'batches#results', summary: 'Download the results of a batch' },
    description:
      'The results so far, available while the batch runs and after a cancellation. In CSV, an apostrophe precedes a text that begins with `=`, `+`, `-` or `@`. Otherwise a spreadsheet would run the text as a formula.',
    query: BatchResults,
    answers: { 200: { description: 'One result per line.', media: ['application/x-jsonl', 'text/csv'] } },
  },
  'POST /v1/batches/:id/cancel': {
    ...{ id: 'cancelBatch', tag: 'Batches', guide: 'batches', summary: 'Cancel a batch' },
    description: 'The output file contains the results of the requests that finished before the cancellation.',
    answers: ok('The batch, whose status may still be `cancelling`.', 'Batch'),
    failures: [409],
  },
  'POST /v1/messages/batches': {
    ...{
      id: 'createMessageBatch',
      tag: 'Batches',
      guide: 'batches',
      summary: 'Create a message batch (Anthropic format)',
    },
    headers: ['anthropic-version', 'idempotency-key'],
    body: 'CreateMessageBatchRequest',
    answers: ok('The message batch.', 'MessageBatch'),
  },
  'GET /v1/messages/batches': {
    ...{ id: 'listMessageBatches', tag: 'Batches', guide: 'batches', summary: 'List message batches' },
    description: 'Message batches of the project, newest first.',
    query: ListMessageBatches,
    answers: ok('A page of message batches.', 'MessageBatchList'),
  },
  'GET /v1/messages/batches/:id': {
    ...{ id: 'getMessageBatch', tag: 'Batches', guide: 'batches', summary: 'Retrieve a message batch' },
    answers: ok('The message batch.', 'MessageBatch'),
  },
  'DELETE /v1/messages/batches/:id': {
    ...{ id: 'deleteMessageBatch', tag: 'Batches', guide: 'batches', summary: 'Delete a message batch' },
    description: 'The batch must have ended.',
    answers: ok('The message batch is deleted.', 'MessageBatchDeleted'),
    failures: [409],
  },
  'POST /v1/messages/batches/:id/cancel': {
    ...{ id: 'cancelMessageBatch', tag: 'Batches', guide: 'batches', summary: 'Cancel a message batch' },
    answers: ok('The message batch, whose status may still be `canceling`.', 'MessageBatch'),
    failures: [409],
  },
  'GET /v1/messages/batches/:id/results': {
    ...{
      id: 'getMessageBatchResults',
      tag: 'Batches',
      guide: 'batches',
      summary: 'Retrieve the results of a message batch',
    },
    answers: {
      200: { description: 'JSONL: one result per request, in request order.', media: ['application/x-jsonl'] },
    },
    failures: [409],
  },
}

const TWO_FORMATS = 'The response has the Anthropic format if the request has an `anthropic-version` header.'

export const ACCOUNT: Operations = {
  'GET /v1/models': {
    ...{ id: 'listModels', tag: 'Account', guide: 'models', summary: 'List models' },
    description: `Models that the API key may use. ${TWO_FORMATS} Only the Anthropic format has pages.`,
    headers: ['anthropic-version'],
    query: ListModels,
    answers: ok('The models.', 'ModelList', 'ModelInfoList'),
  },
  'GET /v1/models/*': {
    ...{ id: 'getModel', tag: 'Account', guide: 'models', summary: 'Retrieve a model' },
    description: `\`id\` is a model id or an alias. ${TWO_FORMATS}`,
    headers: ['anthropic-version'],
    answers: ok('The model.', 'Model', 'ModelInfo'),
  },
  'GET /v1/key': {
    ...{ id: 'getOwnKey', tag: 'Account', guide: 'keys', summary: 'Retrieve the calling API key' },
    description: 'Permissions, expiry and effective limits of the key that authenticates the request.',
    answers: ok('The key, without its secret.', 'OwnKey'),
  },
  'GET /v1/usage': {
    ...{ id: 'getUsage', tag: 'Account', guide: 'usage', summary: 'Retrieve usage and cost' },
    description: 'Calls, tokens and cost per project, API key, model, endpoint, day or hour.',
    query: ReadUsage.omit({ beta: true }),
    answers: { 200: { description: 'The usage report.', json: ['UsageReport'], media: ['text/csv'] } },
  },
  'GET /v1/history': {
    ...{ id: 'getHistory', tag: 'Account', guide: 'usage#history', summary: 'Retrieve figures over time' },
    description: 'Calls, tokens, cost, queue times and times to the first output in equal intervals.',
    query: ReadHistory.omit({ beta: true }),
    answers: ok('The intervals, oldest first.', 'HistoryReport'),
  },
  'GET /v1/webhook-secrets': {
    ...{ id: 'listWebhookSecrets', tag: 'Account', guide: 'webhooks', summary: 'List webhook signing secrets' },
    description: 'Secrets that sign the webhook messages of the project.',
    answers: ok('The secrets.', 'WebhookSecretList'),
  },
}

/** Endpoints without authentication. The HTTP server answers them before it searches the route table. */
export const SERVICE: Operations = {
  'GET /healthz': {
    id: 'getHealth',
    tag: 'Service',
    summary: 'Check liveness',
    guide: 'monitoring#health-checks-and-metrics',
    answers: ok('The process is running.', 'Health'),
  },
  'GET /health': {
    id: 'getHealthAsVllm',
    tag: 'Service',
    summary: 'Check liveness (the path that vLLM uses)',
    guide: 'monitoring#health-checks-and-metrics',
    answers: ok('The process is running.', 'Health'),
  },
  'GET /readyz': {
    id: 'getReadiness',
    tag: 'Service',
    summary: 'Check readiness',
    guide: 'monitoring#health-checks-and-metrics',
    answers: {
      200: { description: 'The process is ready for requests.', json: ['Ready'] },
      503: { description: 'The process is not ready; `problems` lists the reasons.', json: ['Ready'] },
    },
  },
  'GET /metrics': {
    id: 'getMetrics',
    tag: 'Service',
    summary: 'Get Prometheus metrics',
    description:
      'Requests from other hosts need an API key with the `admin` scope. Disabled if METRICS_PORT serves the metrics on another port.',
    guide: 'monitoring#health-checks-and-metrics',
    answers: { 200: { description: 'Metrics in the Prometheus text format.', media: ['text/plain'] } },
  },
  'GET /openapi.json': {
    id: 'getOpenApi',
    tag: 'Service',
    summary: 'Get the OpenAPI 3.1 document of this API',
    answers: { 200: { description: 'This document.', json: [] } },
  },
}
