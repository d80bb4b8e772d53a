import {
  ListAdminBatches,
  ListAdminJobs,
  ListAudit,
  ListDeadLetters,
  ListDeliveries,
  ListFindings,
  ListKeys,
  ListProjects,
} from '#schemas/admin/admin.ts'
import { ListActiveRequests, ListFailures, ListRequests } from '#schemas/admin/requests.ts'
import { type Operation, type Operations, ok } from './operation.ts'

const DRY_RUN = 'With `dry_run: true`, the response lists the affected objects and nothing changes.'

export const ADMIN: Operations = {
  'GET /v1/admin/jobs': {
    ...{
      id: 'listAllJobs',
      tag: 'Admin',
      guide: 'operations#admin-commands',
      summary: 'List the jobs of all projects',
    },
    description: 'Newest first. Inputs and results are not included.',
    query: ListAdminJobs,
    answers: ok('A page of jobs.', 'OperatorJobList'),
  },
  'GET /v1/admin/jobs/:id': {
    ...{ id: 'getAnyJob', tag: 'Admin', guide: 'operations#admin-commands', summary: 'Retrieve a job of any project' },
    description: 'For a job that has not started, `waits` has the reason.',
    answers: ok('The job.', 'OperatorJob'),
  },
  'POST /v1/admin/jobs/:id/cancel': {
    ...{ id: 'cancelAnyJob', tag: 'Admin', guide: 'operations#admin-commands', summary: 'Cancel a job of any project' },
    answers: ok('The job.', 'OperatorJob'),
    failures: [409],
  },
  'POST /v1/admin/jobs/:id/redrive': {
    ...{
      id: 'redriveAnyJob',
      tag: 'Admin',
      guide: 'operations#admin-commands',
      summary: 'Redrive a job of any project',
    },
    description: 'Runs a failed, cancelled or expired job again as a new job of its project.',
    headers: ['idempotency-key'],
    answers: { 202: { description: 'The new job.', json: ['OperatorJob'], headers: ['location'] } },
    failures: [409, 410, 422],
  },
  'POST /v1/admin/jobs/cancel': {
    ...{ id: 'bulkCancelJobs', tag: 'Admin', guide: 'operations#admin-commands', summary: 'Cancel jobs in bulk' },
    description: `Cancels the jobs that match all filters. ${DRY_RUN}`,
    body: 'ManyJobsRequest',
    answers: ok('The outcome per job.', 'ManyJobs'),
  },
  'POST /v1/admin/jobs/redrive': {
    ...{ id: 'bulkRedriveJobs', tag: 'Admin', guide: 'operations#admin-commands', summary: 'Redrive jobs in bulk' },
    description: `Runs the jobs that match all filters again, each as a new job. ${DRY_RUN}`,
    body: 'ManyJobsRequest',
    answers: ok('The outcome per job.', 'ManyJobs'),
  },
  'GET /v1/admin/batches': {
    ...{ id: 'listAllBatches', tag: 'Admin', guide: 'batches', summary: 'List the batches of all projects' },
    description:
      'Lists OpenAI batches and Anthropic message batches, newest first. Inputs and results are not included.',
    query: ListAdminBatches,
    answers: ok('A page of batches.', 'AdminBatchList'),
  },
  'GET /v1/admin/batches/:id': {
    ...{ id: 'getAnyBatch', tag: 'Admin', guide: 'batches', summary: 'Retrieve a batch of any project' },
    answers: ok('The batch.', 'AdminBatch'),
  },
  'POST /v1/admin/batches/:id/cancel': {
    ...{ id: 'cancelAnyBatch', tag: 'Admin', guide: 'batches', summary: 'Cancel a batch of any project' },
    description: 'The output file contains the results of the requests that finished before the cancellation.',
    answers: ok('The batch, whose status may still be `cancelling`.', 'AdminBatch'),
    failures: [409],
  },
  'GET /v1/admin/dead-letters': {
    ...{ id: 'listDeadLetters', tag: 'Admin', guide: 'operations#run-failed-work-again', summary: 'List dead letters' },
    description: 'Queue records that no worker could run, newest first. Inputs are not included.',
    query: ListDeadLetters,
    answers: ok('A page of dead letters.', 'DeadLetterList'),
  },
  'POST /v1/admin/dead-letters/redrive': {
    ...{
      id: 'redriveDeadLetters',
      tag: 'Admin',
      guide: 'operations#run-failed-work-again',
      summary: 'Requeue dead letters in bulk',
    },
    description: `Returns dead letters to their queues. ${DRY_RUN}`,
    body: 'RedriveDeadLettersRequest',
    answers: ok('The requeued dead letters.', 'DeadLettersRedriven'),
  },
  'POST /v1/admin/dead-letters/:id/redrive': {
    ...{
      id: 'redriveDeadLetter',
      tag: 'Admin',
      guide: 'operations#run-failed-work-again',
      summary: 'Requeue a dead letter',
    },
    answers: { 202: { description: 'The requeued dead letter.', json: ['DeadLetter'] } },
  },
  'DELETE /v1/admin/dead-letters/:id': {
    ...{
      id: 'discardDeadLetter',
      tag: 'Admin',
      guide: 'operations#run-failed-work-again',
      summary: 'Discard a dead letter',
    },
    description: 'A discarded dead letter is no longer listed and cannot be requeued.',
    answers: ok('The dead letter is discarded.', 'DeadLetterDeleted'),
  },
  'GET /v1/admin/deliveries': {
    ...{ id: 'listDeliveries', tag: 'Admin', guide: 'webhooks', summary: 'List webhook deliveries' },
    description: 'Lists pending and failed deliveries by default.',
    query: ListDeliveries,
    answers: ok('A page of deliveries.', 'DeliveryList'),
  },
  'POST /v1/admin/deliveries/:id/retry': {
    ...{ id: 'retryDelivery', tag: 'Admin', guide: 'webhooks', summary: 'Retry a webhook delivery' },
    answers: { 202: { description: 'The delivery.', json: ['Delivery'] } },
  },
  'GET /v1/admin/workers': {
    ...{ id: 'listWorkers', tag: 'Admin', guide: 'operations#admin-commands', summary: 'List workers' },
    description: 'All live processes: workers, ingresses and schedulers.',
    answers: ok('The processes.', 'WorkerList'),
  },
  'POST /v1/admin/workers/:id/drain': worker(
    'drainWorker',
    'Drain a worker',
    'The worker finishes its running jobs and starts no others.',
  ),
  'POST /v1/admin/workers/:id/undrain': worker(
    'undrainWorker',
    'Undrain a worker',
    'The worker accepts new jobs again.',
  ),
  'GET /v1/admin/pools': {
    ...{ id: 'listPools', tag: 'Admin', guide: 'operations#admin-commands', summary: 'List pools' },
    description: 'Workers, slots, queue lengths and queue age per pool.',
    answers: ok('The pools.', 'PoolList'),
  },
  'GET /v1/admin/models': {
    ...{
      id: 'listModelStates',
      tag: 'Admin',
      guide: 'several-servers#the-gain',
      summary: 'List models with their servers',
    },
    description: 'Prompt tokens and cached prompt tokens per model and server.',
    answers: ok('The models.', 'ModelStateList'),
  },
  'GET /v1/admin/findings': {
    ...{ id: 'listFindings', tag: 'Admin', guide: 'incidents#first-checks', summary: 'Run health checks' },
    description: 'The checks of `sluice doctor`: current problems and how to fix them.',
    query: ListFindings,
    answers: ok('The check results.', 'FindingList'),
  },
  'GET /v1/admin/metrics': {
    ...{
      id: 'readMetrics',
      tag: 'Admin',
      guide: 'monitoring#health-checks-and-metrics',
      summary: 'Get Prometheus metrics of this process',
    },
    description: 'Available regardless of METRICS_PORT.',
    answers: { 200: { description: 'Metrics in the Prometheus text format.', media: ['text/plain'] } },
  },
  'GET /v1/admin/requests': {
    ...{ id: 'listRequests', tag: 'Admin', guide: 'requests', summary: 'List requests' },
    description:
      'Calls and durable jobs that have ended, newest first. A page may have fewer items than `limit`, or none, while `has_more` is true. A key without the admin scope gets only the calls of its project.',
    query: ListRequests,
    answers: ok('A page of requests.', 'RequestList'),
  },
  'GET /v1/admin/requests/failures': {
    ...{ id: 'listFailures', tag: 'Admin', guide: 'requests#failures', summary: 'Count failed requests' },
    description:
      'Failed requests of the request log by error code, model, project and key, as JSON or CSV. A key without the admin scope gets only the failures of its project.',
    query: ListFailures,
    answers: { 200: { description: 'The failures.', json: ['RequestFailuresList'], media: ['text/csv'] } },
  },
  'GET /v1/admin/requests/active': {
    ...{ id: 'listActiveRequests', tag: 'Admin', guide: 'requests', summary: 'List running and waiting calls' },
    description:
      'Synchronous calls that wait or run at the ingress that receives this request, oldest first, with the reason of each wait. A key without the admin scope gets only the calls of its project.',
    query: ListActiveRequests,
    answers: ok('The calls.', 'ActiveRequestList'),
  },
  'POST /v1/admin/requests/:id/cancel': {
    ...{ id: 'cancelActiveRequest', tag: 'Admin', guide: 'requests', summary: 'Cancel a running or waiting call' },
    description:
      'The caller of the request receives `job_cancelled`. To cancel durable jobs, use `POST /v1/jobs/{id}/cancel`.',
    answers: ok('The call, in its state before the cancellation.', 'ActiveRequest'),
  },
  'GET /v1/admin/requests/:id': {
    ...{ id: 'getRequest', tag: 'Admin', guide: 'requests', summary: 'Retrieve a request' },
    description: '`id` is the id of the request, of its durable job, or of its answer such as chatcmpl-….',
    answers: ok('The request.', 'Request'),
  },
  'GET /v1/admin/pauses': {
    ...{
      id: 'listPauses',
      tag: 'Admin',
      guide: 'operations#pause-a-model-or-a-pool',
      summary: 'List paused models and pools',
    },
    answers: ok('The pauses.', 'PauseList'),
  },
  'POST /v1/admin/pools/:id/pause': pause('pausePool', 'Pause a pool'),
  'POST /v1/admin/pools/:id/resume': pause('resumePool', 'Resume a pool'),
  'POST /v1/admin/models/:id/pause': pause('pauseModel', 'Pause a model'),
  'POST /v1/admin/models/:id/resume': pause('resumeModel', 'Resume a model'),
}

function worker(id: string, summary: string, description: string): Operation {
  return {
    id,
    tag: 'Admin',
    guide: 'operations#admin-commands',
    summary,
    description,
    answers: ok('The worker, after it has confirmed the change.', 'Worker'),
  }
}

function pause(id: string, summary: string): Operation {
  const description = summary.startsWith('Pause')
    ? 'Running jobs finish; queued durable jobs stay queued; new calls are rejected with 503 `overloaded`.'
    : 'Queued jobs start again.'
  return {
    id,
    tag: 'Admin',
    guide: 'operations#admin-commands',
    summary,
    description,
    answers: ok('The current state.', 'Pause'),
  }
}

export const ADMIN_KEYS: Operations = {
  'GET /v1/admin/keys': {
    ...{ id: 'listKeys', tag: 'Admin', guide: 'keys', summary: 'List API keys' },
    description: 'Includes revoked and expired keys, newest first. Secrets are not included.',
    query: ListKeys,
    answers: ok('A page of keys.', 'KeyList'),
  },
  'POST /v1/admin/keys': {
    ...{ id: 'createKey', tag: 'Admin', guide: 'keys', summary: 'Create an API key' },
    description:
      'Only this response contains the secret. The new key cannot have scopes, endpoints or models that the calling key lacks, and cannot expire later than the calling key.',
    body: 'CreateKeyRequest',
    answers: { 201: { description: 'The key, with its secret.', json: ['KeyCreated'], headers: ['location'] } },
  },
  'GET /v1/admin/keys/:id': {
    ...{ id: 'getKey', tag: 'Admin', guide: 'keys', summary: 'Retrieve an API key' },
    answers: ok('The key, without its secret.', 'Key'),
  },
  'POST /v1/admin/keys/:id': {
    ...{ id: 'updateKey', tag: 'Admin', guide: 'keys', summary: 'Update an API key' },
    description: 'Changes the name, permissions, expiry or limits. Omitted fields are unchanged.',
    body: 'UpdateKeyRequest',
    answers: ok('The updated key.', 'Key'),
  },
  'POST /v1/admin/keys/:id/rotate': {
    ...{ id: 'rotateKey', tag: 'Admin', guide: 'keys', summary: 'Rotate an API key' },
    description: 'Creates a key with the same permissions. The old key stays valid for `grace_period_seconds`.',
    body: 'RotateKeyRequest',
    answers: { 201: { description: 'The new key, with its secret.', json: ['KeyRotated'], headers: ['location'] } },
  },
  'POST /v1/admin/keys/:id/revoke': {
    ...{ id: 'revokeKey', tag: 'Admin', guide: 'keys', summary: 'Revoke an API key' },
    description: 'Takes effect immediately and cannot be undone.',
    answers: ok('The revoked key.', 'Key'),
  },
  'GET /v1/admin/projects': {
    ...{ id: 'listProjects', tag: 'Admin', guide: 'keys', summary: 'List projects' },
    description: 'Newest first.',
    query: ListProjects,
    answers: ok('A page of projects.', 'ProjectList'),
  },
  'POST /v1/admin/projects': {
    ...{ id: 'createProject', tag: 'Admin', guide: 'keys', summary: 'Create a project' },
    body: 'ProjectRequest',
    answers: { 201: { description: 'The project.', json: ['Project'], headers: ['location'] } },
  },
  'GET /v1/admin/projects/:id': {
    ...{ id: 'getProject', tag: 'Admin', guide: 'keys', summary: 'Retrieve a project' },
    answers: ok('The project.', 'Project'),
  },
  'POST /v1/admin/projects/:id': {
    ...{ id: 'updateProject', tag: 'Admin', guide: 'keys', summary: 'Update a project' },
    description: 'Changes the name or limits. Omitted fields are unchanged.',
    body: 'ProjectRequest',
    answers: ok('The updated project.', 'Project'),
  },
  'GET /v1/admin/audit': {
    ...{ id: 'listAudit', tag: 'Admin', guide: 'keys', summary: 'List audit events' },
    description: 'Changes of API keys, projects and webhook secrets, newest first.',
    query: ListAudit,
    answers: ok('The audit events.', 'AuditList'),
  },
}
