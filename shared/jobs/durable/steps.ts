import type { DurableJob } from '#schemas/durable-job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { readJson } from '#shared/json/read.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { RecordedStep, StepInput } from '#shared/store/jobs.ts'
import type { StoreView } from '#shared/store/store.ts'

/** Maximum bytes of outputs read from blobs per page. A page ends at this size, but contains at least one step. */
const PAGE_BYTES_MAX = 4 * 1024 * 1024

export interface StepView extends Omit<RecordedStep, 'output' | 'blob'> {
  readonly number: number
  readonly input: StepInput | null
  readonly output: unknown
}

/**
 * A page of a job's steps, in order of completion, with their results.
 *
 * @param after Number of the last step of the previous page
 * @throws ServiceError `not_found` if the output of a step is gone
 */
export async function listSteps(
  { store, blobs }: { readonly store: StoreView; readonly blobs: Blobs },
  { id, tenant }: DurableJob,
  after: number,
  limit: number,
): Promise<{ steps: StepView[]; hasMore: boolean }> {
  const rows = await store.listRecordedSteps(tenant, id, after, limit + 1)
  const steps: StepView[] = []
  let bytes = 0
  for (const { output, blob: _, ...row } of rows.slice(0, limit)) {
    if (bytes >= PAGE_BYTES_MAX) break
    const json = 'blob' in output ? await blobs.get(output.blob) : undefined
    bytes += json?.length ?? 0
    const value = 'blob' in output ? json && (await runYielding(readJson(json))) : output.value
    steps.push({ ...row, number: after + steps.length + 1, output: value })
  }
  return { steps, hasMore: rows.length > steps.length }
}
