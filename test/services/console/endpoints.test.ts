import { resolve } from 'node:path'
import { expect, it, vi } from 'vitest'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { endpointOf } from '#services/ingress/endpoints/extension.ts'
import { openApiDocument } from '#services/ingress/openapi/openapi.ts'
import { loadExtensions } from '#shared/ports/extensions.ts'

// services/console/api/client.ts reads sessionStorage when it is imported, so the test defines sessionStorage before the import.
vi.stubGlobal('sessionStorage', { getItem: () => null })
const { scalarEndpointsOf } = await import('#services/console/screens/playground/call/catalog.ts')
const { endpointsOf } = await import('#services/console/screens/jobs/list.ts')

it('the job filter of the console offers every job endpoint of the ingress, and batches', async () => {
  const endpoints = endpointsOf((await openApiDocument()) as unknown as Parameters<typeof endpointsOf>[0])
  expect(endpoints.toSorted()).toEqual([...JOB_ENDPOINTS.map(({ path }) => path), '/v1/batches'].toSorted())
})

it('the playground generates a form for an extension endpoint whose fields are single values', async () => {
  const [shout] = await loadExtensions([resolve('examples/custom-kind/shout.ts')])
  if (!shout) throw new Error('no extension was loaded')
  const document = await openApiDocument([...JOB_ENDPOINTS, endpointOf(shout)])
  const forms = scalarEndpointsOf(document as unknown as Parameters<typeof scalarEndpointsOf>[0])
  expect(forms.get('/v1/shout')).toEqual(['text'])
  expect([...forms.keys()]).toEqual(['/v1/shout'])
})
