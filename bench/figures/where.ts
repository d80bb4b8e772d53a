import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { renderTable, show } from './markdown.ts'

/** What of V8's format of CPU profiles is read here (Chrome DevTools Protocol, Profiler.Profile). Times in microseconds. */
interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number
    readonly callFrame: { readonly functionName: string; readonly url: string }
    readonly children?: readonly number[]
  }[]
  readonly samples: readonly number[]
  readonly timeDeltas: readonly number[]
}

/** Where the CPU of one target went under one load. */
export interface Where {
  readonly title: string
  /** CPU of one answer in milliseconds, or of one token in microseconds. */
  readonly cpu: number
  /** Share of each part. */
  readonly shares: ReadonlyMap<string, number>
}

const REST = 'all else'
const SYSTEM = 'system calls: writes to sockets'
/** Parts by the file of the function that ran; the first that fits counts. What V8 and Node do inside counts for its caller. */
const PARTS: readonly (readonly [string, RegExp])[] = [
  ['promises, timers, the loop', /node:internal\/(process|timers)|node:timers/],
  ['undici: the call of the upstream', /undici|^wasm/],
  ["Node's HTTP server, streams, buffers", /^node:/],
  ['client of Postgres', /node_modules\/pg/],
  ['access log, metrics', /pino|sonic-boom|prom-client|shared\/(log|metrics)|call-log/],
  ['content filter', /content-filter|obscenity/],
  ['key, limits, usage', /callers|shared\/(keys|usage|limits|store)/],
  ['reading and checking the body', /zod|ingress\/body|schemas\/|shared\/json|body-parser|calls\/proxy|durable\/bare/],
  ['engine: the request and the answer of the upstream', /shared\/engines|services\/inference|eventsource-parser/],
  ['queue: turns, records, worker, attempts', /shared\/(jobs|broker|yielding|tick-throttle)|kafka/],
  ['endpoint, answer, frames', /shared\/(protocols|kinds)|services\/ingress/],
]
const WRITES = /^(write(Latin1|Utf8|Ucs2)?String|writev|writeBuffer|shutdown)$/

/**
 * Reads the profiles in a directory.
 *
 * @param share Of each profile, from its end on: the last of what its process did.
 * @param name The one profile that counts; default: all of them.
 */
export function sharesIn(dir: string, share: number, name?: string): Map<string, number> {
  const spent = new Map<string, number>()
  const files = name === undefined ? readdirSync(dir) : [`${name}.cpuprofile`]
  for (const file of files) addSpent(JSON.parse(readFileSync(join(dir, file), 'utf8')), share, spent)
  const all = [...spent.values()].reduce((sum, micros) => sum + micros, 0)
  return new Map([...spent].map(([part, micros]) => [part, micros / all]))
}

function addSpent({ nodes, samples, timeDeltas }: CpuProfile, share: number, spent: Map<string, number>): void {
  const frames = new Map(nodes.map(({ id, callFrame }) => [id, callFrame]))
  const callers = new Map(nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)))
  for (let i = Math.floor(samples.length * (1 - share)); i < samples.length; i++) {
    const part = partOf(samples[i] as number, frames, callers)
    if (part !== undefined) spent.set(part, (spent.get(part) ?? 0) + (timeDeltas[i] ?? 0))
  }
}

/** Undefined: idle. */
function partOf(
  sample: number,
  frames: ReadonlyMap<number, { readonly functionName: string; readonly url: string }>,
  callers: ReadonlyMap<number, number>,
): string | undefined {
  const { functionName } = frames.get(sample) ?? { functionName: '' }
  if (functionName === '(idle)') return undefined
  if (functionName === '(garbage collector)') return 'garbage collection'
  if (WRITES.test(functionName)) return SYSTEM
  for (let id: number | undefined = sample; id !== undefined; id = callers.get(id)) {
    const { url = '' } = frames.get(id) ?? {}
    if (url !== '') return PARTS.find(([, files]) => files.test(url))?.[0] ?? REST
  }
  return functionName === 'runMicrotasks' || functionName === '(program)' ? PARTS[0]?.[0] : REST
}

/** One table of several targets: what each part costs, of which the bare proxy has fewer. */
export function renderWhere(unit: string, decimals: number, columns: readonly Where[]): string {
  const parts = new Set(columns.flatMap(({ shares }) => [...shares.keys()]))
  const costOf = (part: string, { cpu, shares }: Where) => (shares.get(part) ?? 0) * cpu
  const most = (part: string) => Math.max(...columns.map((column) => costOf(part, column)))
  const rows = [...parts].toSorted((a, b) => most(b) - most(a))
  const cells = (part: string) =>
    columns.flatMap((column) => [
      show(costOf(part, column), decimals),
      `${show(100 * (column.shares.get(part) ?? 0), 0)} %`,
    ])
  const head = [unit, ...columns.flatMap(({ title }) => [title, 'of it'])]
  const all = ['**all**', ...columns.flatMap(({ cpu }) => [`**${show(cpu, decimals)}**`, ''])]
  return renderTable(head, [...rows.map((part) => [part, ...cells(part)]), all])
}

/** What a target is missed by, in words: by how much the parts that the bare proxy has too grow, and what the largest of the others is. */
export function renderWhy(columns: readonly Where[]): string {
  const [proxy, ...others] = columns
  if (!proxy) return ''
  const shared = [...proxy.shares].filter(([part, share]) => share >= SHARED_MIN && part !== REST).map(([part]) => part)
  const sentences = others.map(({ title, cpu, shares }) => {
    const common = (cpu * shared.reduce((sum, part) => sum + (shares.get(part) ?? 0), 0)) / proxy.cpu
    const own = [...shares].filter(([part]) => !shared.includes(part)).toSorted((a, b) => b[1] - a[1])
    const [largest = REST, most = 0] = own[0] ?? []
    return (
      `*${title}*: what the proxy does too costs ${show(common, 1)} × the proxy by itself; of what it does not, no part is more ` +
      `than ${show(100 * most, 0)} % (${largest}).`
    )
  })
  return sentences.join('\n')
}

/** Share of a part from which on the proxy has it: below that lies what a sample hit by chance. */
const SHARED_MIN = 0.01
