import { ServiceError } from '#shared/lib/error.ts'
import type { Store } from '#shared/store/store.ts'
import type { VirtualClock } from '../clock.ts'
import type { SimulatedProcess } from '../simulated-process.ts'
import type { Faults } from './faults.ts'

/** Clock and faults of a simulation, which the wrappers of store and broker use. */
export interface Surroundings {
  readonly clock: VirtualClock
  readonly faults: Faults
}

type Call = (...args: unknown[]) => Promise<unknown>

/** The store as one process uses it over an unreliable network: see {@link Faults}. Calls may overtake each other. */
export function faultyStore(store: Store, process: SimulatedProcess, { clock, faults }: Surroundings): Store {
  const isDown = () => faults.isDown('store') || process.isStoreCut
  async function call(run: () => Promise<unknown>): Promise<unknown> {
    if (faults.isCrash) process.kill()
    await process.alive()
    if (isDown()) throw overloaded('is down')
    const fate = faults.storeFate()
    if (fate === 'refused') throw overloaded('refused')
    const sendMs = faults.storeMs()
    // A call that is on its way reaches the store even if its sender dies. The timer of the delay therefore belongs to no process: timers of a dead
    // process never fire.
    if (sendMs > 0) await clock.as(undefined, () => clock.sleep(sendMs))
    if (fate === 'late') {
      clock.at(clock.nowMs + faults.random.between(1, 3_000), () => void run().catch(() => {}))
      throw overloaded('did not answer in time')
    }
    const answer = await clock.as(undefined, run)
    if (faults.isCrash) process.kill()
    await process.alive(faults.storeMs())
    if (fate === 'unanswered') throw overloaded('cut the connection')
    return answer
  }
  return new Proxy(store, {
    get(target, name) {
      if (name === 'isReachable') return !isDown()
      // No job of the simulation has a webhook. Polls for webhook deliveries are answered without the store, to save time.
      if (name === 'takeDeliveries') return async () => []
      if (name === 'pendingDeliveries') return async () => ({ count: 0, oldest_at_ms: null })
      const value = Reflect.get(target, name) as unknown
      if (typeof value !== 'function') return value
      return async (...args: unknown[]) => {
        const askedAtMs = clock.databaseMs()
        const answer = await call(() => (value as Call).apply(target, args))
        if (name === 'renew') process.renewals.push({ askedAtMs, renewedAtMs: clock.databaseMs() })
        return answer
      }
    },
  })
}

function overloaded(what: string): ServiceError {
  return new ServiceError('overloaded', `The simulated store ${what}.`)
}
