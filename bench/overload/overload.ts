import type { Section } from '../section.ts'
import { measureCapacity } from './capacity.ts'
import { measureModels } from './models.ts'
import { measureTenants } from './tenants.ts'

export const OVERLOAD: Section = {
  name: 'overload',
  summary: '120 % of the capacity; one busy and one stalled model among others; one slow tenant next to a flood',
  title: '## Overload',
  introduction: `**More calls than capacity.** One process with ten slots and answers of 100 ms receives 120 % of the calls that it can answer. A refused
caller retries after its \`Retry-After\`.

**Models.** A service with four models and the default 256 slots gets 256 streams of one model, next to a bare proxy in the same
round. Then twice as many callers use all slots, and 16 callers of a second model arrive: the figure is the time to the last of
their first tokens, in both directions. *Stalled* is a model whose upstream never answers: 128 callers wait for it, and six
callers use two healthy models of the same worker with 32 slots.

**Tenants.** Tenant B sends four calls and two durable jobs of 200 ms per second, alone and next to a flood of tenant A: 100 calls in
flight, or durable jobs as fast as they are accepted. The worker has 12 slots. A wait is the latency minus the 200 ms.`,
  async measure(run) {
    return [...(await measureCapacity(run)), ...(await measureModels(run)), ...(await measureTenants(run))]
  },
}
