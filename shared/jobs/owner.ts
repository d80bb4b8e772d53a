/*
 * Access to the state transitions of the store. Services hold the store as a {@link StoreView}, which lacks these methods. Only code in `shared/jobs/`
 * may import this file, so only this folder can change job states.
 */

import type { Store, StoreView } from '#shared/store/store.ts'

export function ownerOf(store: StoreView): Store {
  return store as Store
}
