import { expect, it } from 'vitest'
import { BatchProgress } from '#services/cli/batches/follow-table.ts'
import type { BatchesApi, BatchView } from '#services/cli/client/http.ts'
import { rateText } from '#services/cli/client/job-text.ts'
import type { Output } from '#services/cli/text/output.ts'

const NOW_MS = 1_000_000
const ROUGH = { requests_per_second: null, estimated_end_at: null }

it.each([
  [9, 11, 'ends in about 10 s'],
  [4, 22, 'ends in 4 s to 22 s'],
  [0, 1, 'ends in about 1 s'],
  [600, 1_500, 'ends in 10 min to 25 min'],
])('an estimated range of %i to %i seconds is shown as one value only if the range is narrow', (least, most, text) => {
  const range = { earliest: NOW_MS / 1_000 + least, latest: NOW_MS / 1_000 + most }
  expect(rateText({ ...ROUGH, estimated_end_range: range }, NOW_MS)).toBe(text)
})

it('the message after Ctrl-C contains the estimated end of the batch', async () => {
  const now = Date.now() / 1_000
  const batch: BatchView = {
    ...{ id: 'batch_1', status: 'in_progress', endpoint: '/v1/chat/completions', created_at: now },
    request_counts: { total: 10, completed: 4, failed: 0 },
    progress: { ...ROUGH, estimated_end_range: { earliest: now + 100, latest: now + 120 } },
  }
  const batches = { get: async () => batch } as unknown as BatchesApi
  const out = { canRedraw: false, note: () => {} } as unknown as Output
  const followed = new BatchProgress(batches, out, {
    cancelOnInterrupt: false,
    continueText: () => 'To continue: x',
  }).follow(batch)
  process.emit('SIGINT')
  await expect(followed).rejects.toThrow(/which continues to run and ends in about 1 min \d+ s\.$/)
})
