import type { ErrorBody } from '#schemas/error.ts'

/** What a sweep ends jobs with whose deadline has passed, and whose workers were lost. */
export const TIMED_OUT: ErrorBody = {
  code: 'timeout',
  message: 'The job took longer than its deadline allows.',
  param: null,
}
export const LOST: ErrorBody = { code: 'worker_lost', message: 'The workers that ran this job were lost.', param: null }
