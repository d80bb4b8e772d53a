import { ApiFailure, askJson } from './client.ts'
import { apiKey, mayCall } from './session.ts'
import type { Model, Page } from './types.ts'

/** A key that may not call: it is not tried again. */
let operatorsKey = ''

/** The models that the key may call, each under its id and its aliases: none where it is for the operator's door alone. */
export async function askModels(abort: AbortSignal): Promise<readonly Model[]> {
  if (apiKey.value === operatorsKey || mayCall.value === false) return []
  return await askJson<Page<Model>>('/v1/models', { signal: abort }).then(
    ({ data }) => data,
    (error: unknown) => {
      if (!(error instanceof ApiFailure) || error.status !== 403) throw error
      operatorsKey = apiKey.value
      return []
    },
  )
}
