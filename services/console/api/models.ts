import { ApiFailure, fetchJson } from './client.ts'
import { apiKey, canCall } from './session.ts'
import type { Model, Page } from './types.ts'

/** The last key that got a 403. The models are not requested again with this key. */
let rejectedKey = ''

/** The models that the key can call, one entry per id and alias. Empty for a key with the `admin` scope alone. */
export async function fetchModels(abort: AbortSignal): Promise<readonly Model[]> {
  if (apiKey.value === rejectedKey || canCall.value === false) return []
  return await fetchJson<Page<Model>>('/v1/models', { signal: abort }).then(
    ({ data }) => data,
    (error: unknown) => {
      if (!(error instanceof ApiFailure) || error.status !== 403) throw error
      rejectedKey = apiKey.value
      return []
    },
  )
}
