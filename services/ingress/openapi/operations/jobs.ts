import { z } from 'zod'
import { ListJobs } from '#schemas/jobs.ts'
import type { Answer, Operations } from '#services/ingress/openapi/operation.ts'
import { AFTER_EVENT, one } from './answers.ts'

const ACCEPTED: Answer = { description: 'The job.', json: ['Job'], headers: ['location', 'retry-after'] }

/** The API of durable jobs (docs/jobs.md). */
export const JOBS: Operations = {
  'POST /v1/jobs': {
    id: 'submitJob',
    tag: 'Jobs',
    summary: 'Submits a call as a durable job',
    headers: ['idempotency-key'],
    body: 'SubmitJobRequest',
    answers: { 202: ACCEPTED },
  },
  'GET /v1/jobs': {
    id: 'listJobs',
    tag: 'Jobs',
    summary: 'Your jobs, newest first',
    query: ListJobs.omit({ beta: true }),
    pairs: 'metadata',
    answers: one(
      'A page of jobs. It may hold fewer than its limit; `last_id` and `has_more` go on all the same.',
      'JobList',
    ),
  },
  'GET /v1/jobs/:id': {
    id: 'getJob',
    tag: 'Jobs',
    summary: 'A job; with `wait` as soon as it has ended',
    query: z.object({ wait: z.int().min(0).max(60).optional().describe('Seconds to wait for its end') }),
    answers: one('The job.', 'Job'),
    failures: [429],
  },
  'DELETE /v1/jobs/:id': {
    id: 'deleteJob',
    tag: 'Jobs',
    summary: 'Forgets a job that has ended',
    answers: one('It is forgotten.', 'JobDeleted'),
    failures: [409],
  },
  'GET /v1/jobs/:id/result': {
    id: 'getJobResult',
    tag: 'Jobs',
    summary: 'What the plain call would have answered',
    description: 'A job that failed answers with its failure, in the format of its endpoint.',
    answers: { 200: { description: 'The result.', json: [], media: ['text/plain'] } },
    failures: [408, 409, 410, 413, 415, 422, 429, 502, 504, 529],
  },
  'GET /v1/jobs/:id/input': {
    id: 'getJobInput',
    tag: 'Jobs',
    summary: 'What the job was asked',
    description: 'In the form that its kind has inside the service. A large one is shown by its beginning.',
    answers: one('The input.', 'JobInput'),
  },
  'GET /v1/jobs/:id/events': {
    id: 'followJob',
    tag: 'Jobs',
    summary: 'Every event of a job, numbered, until it has ended',
    headers: ['last-event-id'],
    query: AFTER_EVENT,
    answers: {
      200: { description: 'The events after a position.', events: 'JobEvent' },
      204: { description: 'Nothing comes after that position.' },
    },
    failures: [429],
  },
  'GET /v1/jobs/:id/steps': {
    id: 'listJobSteps',
    tag: 'Jobs',
    summary: 'What a composed job asked for outside, and what it got',
    query: z.object({
      after: z.int().min(0).max(1_000_000).optional().describe('Number of the last step that is left out'),
      limit: z.int().min(1).max(20).optional(),
    }),
    answers: one('A page of steps.', 'StepList'),
  },
  'POST /v1/jobs/:id/cancel': {
    id: 'cancelJob',
    tag: 'Jobs',
    summary: 'Asks a job to stop',
    answers: one('The job, which may still be `cancelling`.', 'Job'),
    failures: [409],
  },
  'POST /v1/jobs/:id/redrive': {
    id: 'redriveJob',
    tag: 'Jobs',
    summary: 'Runs a failed, cancelled or expired job again, as a new one',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
  'POST /v1/jobs/:id/replay': {
    id: 'replayJob',
    tag: 'Jobs',
    summary: 'Runs a composed job again from its record alone',
    headers: ['idempotency-key'],
    answers: { 202: ACCEPTED },
  },
}
