import { z } from 'zod'
import { ListJobs } from '#schemas/jobs.ts'
import type { Answer, Operations } from '#services/ingress/openapi/operation.ts'
import { AFTER_EVENT, ok } from './shared.ts'

const tag = 'Jobs'
const guide = 'jobs'
const ACCEPTED: Answer = { description: 'The new job.', json: ['Job'], headers: ['location', 'retry-after'] }

export const JOBS: Operations = {
  'POST /v1/jobs': {
    ...{ id: 'submitJob', tag, guide, summary: 'Submit a job' },
    description: 'Runs a request to another endpoint as a durable background job.',
    headers: ['idempotency-key'],
    body: 'SubmitJobRequest',
    answers: { 202: ACCEPTED },
  },
  'GET /v1/jobs': {
    ...{ id: 'listJobs', tag, guide, summary: 'List jobs' },
    description:
      'Jobs of the project, newest first by default. A page may have fewer jobs than `limit`: continue while `has_more` is true.',
    query: ListJobs.omit({ beta: true }),
    pairs: 'metadata',
    answers: ok('A page of jobs.', 'JobList'),
  },
  'GET /v1/jobs/:id': {
    ...{ id: 'getJob', tag, guide, summary: 'Retrieve a job' },
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
    ...{ id: 'deleteJob', tag, guide, summary: 'Delete a job' },
    description: 'Deletes the job with its request, result and events. The job must have ended.',
    answers: ok('The job is deleted.', 'JobDeleted'),
    failures: [409],
  },
  'GET /v1/jobs/:id/result': {
    ...{ id: 'getJobResult', tag, guide, summary: 'Retrieve the result of a job' },
    description:
      'Returns the response that a synchronous call to the endpoint of the job would have returned. For a failed job, this is the error.',
    answers: { 200: { description: 'The result.', json: [], media: ['text/plain'] } },
    failures: [408, 409, 410, 413, 415, 422, 429, 502, 504, 529],
  },
  'GET /v1/jobs/:id/input': {
    ...{ id: 'getJobInput', tag, guide, summary: 'Retrieve the input of a job' },
    description: "The input in the service's internal format. A large input is truncated.",
    answers: ok('The input.', 'JobInput'),
  },
  'GET /v1/jobs/:id/events': {
    ...{ id: 'followJob', tag, guide, summary: 'Stream the events of a job' },
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
    ...{ id: 'listJobSteps', tag, guide, summary: 'List the steps of a composed job' },
    description:
      'Each step is an operation outside the job, such as a search or a child job, with its input and output.',
    query: z.object({
      after: z.int().min(0).max(1_000_000).optional().describe('Cursor: last_number of the previous page'),
      limit: z.int().min(1).max(20).optional().describe('Maximum steps per page. Default: 20'),
    }),
    answers: ok('A page of steps.', 'StepList'),
  },
  'POST /v1/jobs/:id/cancel': {
    ...{ id: 'cancelJob', tag, guide, summary: 'Cancel a job' },
    answers: ok('The job. The status of a running job is `cancelling` until its worker has stopped.', 'Job'),
    failures: [409],
  },
  'POST /v1/jobs/:id/redrive': {
    ...{ id: 'redriveJob', tag, guide, summary: 'Redrive a job' },
    description: 'Runs a failed, cancelled or expired job again as a new job.',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
  'POST /v1/jobs/:id/replay': {
    ...{ id: 'replayJob', tag, guide, summary: 'Replay a composed job' },
    description:
      'Runs a composed job again as a new job. Recorded step outputs replace all calls to models, searches and other jobs.',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
  'GET /v1/ws': {
    ...{ id: 'openWebSocket', tag, guide: 'websocket', summary: 'Open a WebSocket' },
    description: 'Runs many requests and job subscriptions over one connection. Subprotocol: `inference.v1`.',
    answers: { 101: { description: 'Switching to the WebSocket protocol.' } },
  },
}
