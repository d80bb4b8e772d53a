/*
 * Access to the state transitions of the store. The type of the store in services hides these methods, which every store has. Only code in
 * `shared/jobs/` may import this file, so only this folder changes job states.
 */

import type { Store, StoreView } from '#shared/store/store.ts'

export function ownerOf(store: StoreView): Store {
  return store as Store
}
