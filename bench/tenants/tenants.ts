import { renderTable, show } from '../figures/markdown.ts'
import type { Section } from '../section.ts'
import { measureCalls } from './calls.ts'
import { MANY, measureClaims } from './claims.ts'

const TENANTS = [1, 10, 100, 1_000] as const

/** What a turn costs among many tenants. */
export const TENANTS_SECTION: Section = {
  name: 'tenants',
  title: '## Turns among many tenants',
  introduction: `Durable jobs: a worker claims one job after the other while so many tenants have one job waiting each, beside one tenant
that has ${MANY.toLocaleString('en')}; CPU of the process and of the database together. Calls, in the ingress alone: a call enters, another one has its turn
and ends, while one call of each tenant waits, and a thousand more of one; the same while all those wait for a model without a
free place; how many are before a new call, which is asked of each, without and with a caller of each tenant that was told when to
come back; and a call that comes again from a worker.`,
  isLarge: true,
  async measure({ isQuick, print, signal }) {
    const counts = isQuick ? TENANTS.filter((count) => count !== 10 && count !== 100) : TENANTS
    const claims = await measureClaims(counts, signal)
    for (const { store, tenants, cpuMs } of claims)
      print(`claim, ${store}, ${tenants} tenants: ${cpuMs.toFixed(2)} ms CPU`)
    measureCalls(1)
    const calls = counts.map(measureCalls)
    return [
      renderTable(
        ['store', 'tenants', 'CPU ms a claim', 'p50 ms'],
        claims.map(({ store, tenants, cpuMs, ms }) => [store, String(tenants), show(cpuMs, 2), show(ms, 1)]),
      ),
      renderTable(
        ['tenants', 'turn, µs of CPU', 'beside a busy model', 'how many are before', 'with as many expected', 'again'],
        calls.map((cost) => [
          String(cost.tenants),
          ...[cost.turn, cost.beside, cost.ahead, cost.expected, cost.again].map((of) => show(of, 1)),
        ]),
      ),
    ]
  },
}
