import type { Store, StoreView } from '#shared/store/store.ts'

/**
 * The store with the methods for state transitions, which every store has. The type of the store in services hides them. Only
 * code in `shared/jobs/` may import this file, so only this folder changes job states.
 */
export function ownerOf(store: StoreView): Store {
  return store as Store
}
