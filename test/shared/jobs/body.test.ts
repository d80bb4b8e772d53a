/* Tests that the body of a job is read back unchanged, at any length. A short body is stored in the record of the job, a long one in a blob. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { openDiskBlobs } from '#shared/blobs/disk.ts'
import { BODY_BYTES_MAX, fetchBody, storeBody } from '#shared/jobs/body.ts'

const KIB = 1_024

test.each([
  ['a record', 40 * KIB, false],
  ['a blob', BODY_BYTES_MAX, true],
  ['a blob with a single write', 200 * KIB, true],
  ['a blob with several writes', 512 * KIB - 40, true],
  ['a blob of several megabytes', 3_000 * KIB, true],
])('a request body is read back unchanged if it is stored in %s', async (_, chars, isBlob) => {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-test-'))
  onTestFinished(() => rm(directory, { recursive: true }))
  const blobs = await openDiskBlobs(directory)
  const text = 'Is it "so"?\n😀 '.repeat(chars / 10).slice(0, chars - 100)
  const body = { turns: [{ role: 'user', parts: [text, ...Array.from({ length: 20 }, (_, index) => `${index}`)] }] }
  const stored = await storeBody('job_1', body, blobs)
  expect('blob' in stored).toBe(isBlob)
  const envelope = 'blob' in stored ? stored : { body: JSON.parse(stored.json) as unknown }
  expect(await fetchBody(envelope, blobs)).toEqual(body)
})
