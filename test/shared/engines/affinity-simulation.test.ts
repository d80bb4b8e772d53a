/**
 * Seeded simulation of affinity while servers come and go: three workers place the calls of 40 conversations on four servers. Servers leave, return
 * and open their circuit breakers, and some calls share one key. Each deliberate defect must violate one of these invariants:
 *
 * 1. A call never goes to a server that is down while another one is up.
 * 2. While no server is loaded, a conversation stays on its server in all workers. A conversation moves only if that server is down, or to a server
 * that has returned.
 * 3. No server of a worker exceeds the load bound: 1.25 times the mean, or three standard deviations above the mean if that is more.
 */
import { expect, test } from 'vitest'
import { AdaptiveLimit } from '#shared/capacity/adaptive-limit.ts'
import { seedOf } from '#shared/engines/upstream/affinity.ts'
import { type AcquiredPermit, type Breaker, type Server, Servers } from '#shared/engines/upstream/servers.ts'
import { openRandom } from '../../chaos/load/random.ts'

interface SimulatedServer extends Server {
  readonly name: string
}

interface Defect {
  readonly Placement?: typeof Servers<SimulatedServer>
  readonly seedOf?: (name: string, worker: number, up: readonly string[]) => number
  readonly limit?: () => AdaptiveLimit
}

class NeverRemoved extends Servers<SimulatedServer> {
  override leave(acquired: AcquiredPermit<SimulatedServer>): void {
    super.leave({ ...acquired, key: undefined })
  }
}

class Unloaded extends AdaptiveLimit {
  override get inFlight(): number {
    return 0
  }
}

const DEFECTS: Readonly<Record<string, Defect>> = {
  'keys in flight are never removed': { Placement: NeverRemoved },
  'workers order the servers differently': { seedOf: (name, worker) => seedOf(`${worker} ${name}`) },
  'a server that leaves changes the order of the others': {
    seedOf: (name, _worker, up) => seedOf(`${up.length} ${name}`),
  },
  'the load of a server is ignored': { limit: () => new Unloaded(1_000) },
}

const NAMES = ['a', 'b', 'c', 'd']
const CONVERSATIONS = 40
const SHARED_KEY = 'shared'
const STEPS = 600
/** Maximum concurrent calls per worker. The simulation alternates between these two loads. */
const CALLS_MAX = { calm: 6, busy: 60 }

interface Placed {
  readonly server: string
  readonly up: readonly string[]
}

/**
 * Runs the simulation with one seed, which determines all random choices.
 *
 * @returns The violated invariant, or an empty text
 */
async function simulate(seed: number, defect: Defect = {}): Promise<string> {
  const random = openRandom(seed)
  const down = new Set<string>()
  const up = () => NAMES.filter((name) => !down.has(name))
  const Placement = defect.Placement ?? Servers<SimulatedServer>
  const workers = [0, 1, 2].map((worker) => {
    const servers = NAMES.map((name): SimulatedServer => {
      const breaker = {
        get isOpen() {
          return down.has(name)
        },
      } as Breaker
      const limit = defect.limit?.() ?? new AdaptiveLimit(1_000)
      return {
        name,
        weight: 1,
        breaker,
        limit,
        get seed() {
          return defect.seedOf?.(name, worker, up()) ?? seedOf(name)
        },
      }
    })
    return { placement: new Placement(servers, () => 3), open: [] as AcquiredPermit<SimulatedServer>[] }
  })
  const last = new Map<string, Placed>()
  for (let step = 0; step < STEPS; step++) {
    if (random.between(0, 19) === 0) flip(down, NAMES[random.between(0, NAMES.length - 1)] ?? '')
    const worker = workers[random.between(0, workers.length - 1)]
    if (!worker) continue
    const { placement, open } = worker
    const callsMax = step % 200 < 100 ? CALLS_MAX.calm : CALLS_MAX.busy
    while (open.length >= callsMax) placement.leave(open.splice(random.between(0, open.length - 1), 1)[0] as never)
    const opened = workers.flatMap(({ open }) => open.map(({ key }) => key))
    const key = keyIn(random, opened)
    const calls = counted(open, up())
    const acquired = await placement.acquire({ signal: NEVER, isTimed: false, tried: new Set(), key })
    open.push(acquired)
    const { name } = acquired.server
    const mean = (sum(calls.values()) + 1) / calls.size
    if (!calls.has(name)) return 'a call went to a server that is down'
    const load = (calls.get(name) ?? 0) + 1
    if (load > Math.max(1.25 * mean, mean + 3 * Math.sqrt(mean + 1)))
      return `${load} calls exceed the load bound at a mean of ${mean}`
    if (key === SHARED_KEY || Math.max(...calls.values()) + 1 > mean + 1) continue
    const before = last.get(key)
    if (before && !mayMove(before, name, up())) return `${key} moved from ${before.server} to ${name}`
    last.set(key, { server: name, up: up() })
  }
  return ''
}

/** Returns the key of the next call: the key that many calls share, or that of a conversation. A conversation has at most one call at a time. */
function keyIn(random: ReturnType<typeof openRandom>, opened: readonly (string | undefined)[]): string {
  const key = random.between(0, 3) === 0 ? SHARED_KEY : `conversation-${random.between(1, CONVERSATIONS)}`
  return opened.includes(key) ? SHARED_KEY : key
}

const NEVER = new AbortController().signal

function flip(down: Set<string>, name: string): void {
  if (down.delete(name)) return
  if (down.size < NAMES.length - 1) down.add(name)
}

function counted(open: readonly AcquiredPermit<SimulatedServer>[], up: readonly string[]): Map<string, number> {
  return new Map(up.map((name) => [name, open.filter(({ server }) => server.name === name).length]))
}

function sum(numbers: Iterable<number>): number {
  return [...numbers].reduce((total, number) => total + number, 0)
}

function mayMove({ server, up: upBefore }: Placed, name: string, up: readonly string[]): boolean {
  return name === server || !up.includes(server) || !upBefore.includes(name)
}

test('affinity violates no invariant in 100 simulations of servers that leave and return', async () => {
  for (let seed = 1; seed <= 100; seed++) expect(await simulate(seed), `seed ${seed}`).toBe('')
})

test.each(Object.keys(DEFECTS))('the simulation of affinity detects the deliberate defect: %s', async (name) => {
  let failure = ''
  for (let seed = 1; seed <= 100 && failure === ''; seed++) failure = await simulate(seed, DEFECTS[name])
  expect(failure).not.toBe('')
})
