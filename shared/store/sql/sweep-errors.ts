import type { ErrorBody } from '#schemas/error.ts'

/** Errors of jobs that sweeps end: after the deadline, and after too many lost workers. */
export const TIMED_OUT: ErrorBody = {
  code: 'timeout',
  message: 'The job took longer than its deadline allows.',
  param: null,
}
export const LOST: ErrorBody = { code: 'worker_lost', message: 'The workers that ran this job were lost.', param: null }
