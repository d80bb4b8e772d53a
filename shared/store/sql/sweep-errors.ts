import type { ErrorBody } from '#schemas/error.ts'

/** Errors with which sweeps end jobs: past the deadline, and after lost workers. */
export const TIMED_OUT: ErrorBody = {
  code: 'timeout',
  message: 'The job took longer than its deadline allows.',
  param: null,
}
export const LOST: ErrorBody = { code: 'worker_lost', message: 'The workers that ran this job were lost.', param: null }
