import { expect, it, vi } from 'vitest'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { openApiDocument } from '#services/ingress/openapi/openapi.ts'

// The session module reads sessionStorage when it is imported.
vi.stubGlobal('sessionStorage', { getItem: () => null })
const { endpointsOf } = await import('#services/console/screens/jobs/list.ts')

it('the job filter of the console offers every job endpoint of the ingress, and batches', async () => {
  const endpoints = endpointsOf((await openApiDocument()) as unknown as Parameters<typeof endpointsOf>[0])
  expect(endpoints.toSorted()).toEqual([...JOB_ENDPOINTS.map(({ path }) => path), '/v1/batches'].toSorted())
})
