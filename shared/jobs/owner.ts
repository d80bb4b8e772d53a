import type { Store, StoreView } from '#shared/store/store.ts'

/**
 * The store with the methods that move jobs, which every store has. What services hold of it does not show them, so that
 * only this folder moves jobs: nobody outside of `shared/jobs/` may import this file.
 */
export function ownerOf(store: StoreView): Store {
  return store as Store
}
