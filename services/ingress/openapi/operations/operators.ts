import { ListAdminJobs, ListDeadLetters, ListDeliveries, ListFindings } from '#schemas/admin/admin.ts'
import type { Operation, Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

/** The operator's door (docs/operations.md, The operator's door). */
export const OPERATORS: Operations = {
  'GET /v1/admin/jobs': {
    id: 'listAllJobs',
    tag: 'Operators',
    summary: 'The jobs of all projects, newest first',
    query: ListAdminJobs,
    answers: one('A page of jobs, without what was asked and answered.', 'OperatorJobList'),
  },
  'GET /v1/admin/jobs/:id': {
    id: 'getAnyJob',
    tag: 'Operators',
    summary: "Any project's job, and why it waits",
    answers: one('The job.', 'OperatorJob'),
  },
  'POST /v1/admin/jobs/:id/cancel': {
    id: 'cancelAnyJob',
    tag: 'Operators',
    summary: "Cancels any project's job",
    answers: one('The job.', 'OperatorJob'),
    failures: [409],
  },
  'POST /v1/admin/jobs/:id/redrive': {
    id: 'redriveAnyJob',
    tag: 'Operators',
    summary: "Runs any project's job again, for that project",
    headers: ['idempotency-key'],
    answers: { 202: { description: 'The new job.', json: ['OperatorJob'], headers: ['location'] } },
    failures: [409, 410, 422],
  },
  'POST /v1/admin/jobs/cancel': {
    id: 'cancelManyJobs',
    tag: 'Operators',
    summary: 'Cancels many jobs, or says which these would be',
    body: 'ManyJobsRequest',
    answers: one('What came of each.', 'ManyJobs'),
  },
  'POST /v1/admin/jobs/redrive': {
    id: 'redriveManyJobs',
    tag: 'Operators',
    summary: 'Runs many jobs again, or says which these would be',
    body: 'ManyJobsRequest',
    answers: one('What came of each.', 'ManyJobs'),
  },
  'GET /v1/admin/dead-letters': {
    id: 'listDeadLetters',
    tag: 'Operators',
    summary: 'Records that no worker could run',
    query: ListDeadLetters,
    answers: one('A page of records, without what they ask for.', 'DeadLetterList'),
  },
  'POST /v1/admin/dead-letters/redrive': {
    id: 'redriveDeadLetters',
    tag: 'Operators',
    summary: 'Puts dead letters back, or says which these would be',
    body: 'RedriveDeadLettersRequest',
    answers: one('Which these are.', 'DeadLettersRedriven'),
  },
  'POST /v1/admin/dead-letters/:id/redrive': {
    id: 'redriveDeadLetter',
    tag: 'Operators',
    summary: 'Puts one dead letter back into its queue',
    answers: { 202: { description: 'It was put back.', json: ['DeadLetter'] } },
  },
  'DELETE /v1/admin/dead-letters/:id': {
    id: 'discardDeadLetter',
    tag: 'Operators',
    summary: 'Has a dead letter shown and put back no more',
    answers: one('It is discarded.', 'DeadLetterDeleted'),
  },
  'GET /v1/admin/deliveries': {
    id: 'listDeliveries',
    tag: 'Operators',
    summary: 'Webhook messages that nobody has received, or those that were delivered',
    query: ListDeliveries,
    answers: one('A page of messages.', 'DeliveryList'),
  },
  'POST /v1/admin/deliveries/:id/retry': {
    id: 'retryDelivery',
    tag: 'Operators',
    summary: 'Sends a webhook message again',
    answers: { 202: { description: 'The message.', json: ['Delivery'] } },
  },
  'GET /v1/admin/workers': {
    id: 'listWorkers',
    tag: 'Operators',
    summary: 'Every process that is alive',
    answers: one('The processes.', 'WorkerList'),
  },
  'POST /v1/admin/workers/:id/drain': worker('drainWorker', 'Lets a worker finish what it has and take nothing more'),
  'POST /v1/admin/workers/:id/undrain': worker('undrainWorker', 'Lets a drained worker take jobs again'),
  'GET /v1/admin/pools': {
    id: 'listPools',
    tag: 'Operators',
    summary: 'Who works in each pool, what waits and for how long',
    answers: one('The pools.', 'PoolList'),
  },
  'GET /v1/admin/findings': {
    id: 'listFindings',
    tag: 'Operators',
    summary: 'What is wrong now and what to do about it, as `sluice doctor` says it',
    query: ListFindings,
    answers: one('What was looked at.', 'FindingList'),
  },
  'GET /v1/admin/metrics': {
    id: 'readMetrics',
    tag: 'Operators',
    summary: 'What this process counts, for Prometheus, also where METRICS_PORT is set',
    answers: { 200: { description: 'The metrics.', media: ['text/plain'] } },
  },
  'GET /v1/admin/pauses': {
    id: 'listPauses',
    tag: 'Operators',
    summary: 'What is paused',
    answers: one('The pauses.', 'PauseList'),
  },
  'POST /v1/admin/pools/:id/pause': pause('pausePool', 'Starts no job of a pool until it is resumed'),
  'POST /v1/admin/pools/:id/resume': pause('resumePool', 'Starts jobs of a pool again'),
  'POST /v1/admin/models/:id/pause': pause('pauseModel', 'Starts no job of a model until it is resumed'),
  'POST /v1/admin/models/:id/resume': pause('resumeModel', 'Starts jobs of a model again'),
}

function worker(id: string, summary: string): Operation {
  return { id, tag: 'Operators', summary, answers: one('The worker, which has confirmed it.', 'Worker') }
}

function pause(id: string, summary: string): Operation {
  return { id, tag: 'Operators', summary, answers: one('What is so now.', 'Pause') }
}
