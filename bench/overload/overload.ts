import type { Section } from '../section.ts'
import { measureOverload } from './measure.ts'
import { renderOverload } from './report.ts'

/** How long the load is on, unless `--seconds` says otherwise. */
const SECONDS = { quick: 8, whole: 30 } as const

/** More calls than can be answered, and floods of one tenant. */
export const OVERLOAD: Section = {
  name: 'overload',
  title: '## Overload',
  introduction: `One process with the memory broker, ten slots and a model that takes 100 ms is offered 120 % of the calls that it answers a second
when there is always somebody waiting: its capacity, measured just before. \`START_TIMEOUT_MS\` is 2 s. Every caller that is refused comes back once its \`Retry-After\` is
over; those are counted that do so while the load is on. **Floods**: one tenant sends a hundred calls to all ingresses for each of another
tenant's, which all go to one; *behind* is how many calls start between one of these and its own start, *share* its part of the starts
when it has many waiting too. The ingresses of a flood share a memory broker, and a worker of eight slots that only waits.`,
  measure: async ({ dir, isQuick, seconds, print, signal }) =>
    renderOverload(
      await measureOverload({ seconds: seconds ?? SECONDS[isQuick ? 'quick' : 'whole'], print, signal }, dir),
    ),
}
