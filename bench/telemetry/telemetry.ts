import { type Load, runLoad } from '../load/callers.ts'
import { measureLoad, type Target } from '../load/measure.ts'
import { startUpstream } from '../load/start.ts'
import { OneCore } from '../machine/one-core.ts'
import { type Processes, urlOf } from '../machine/processes.ts'
import { startSluice, untilAnswered, upstreamModel } from '../machine/sluice.ts'
import { Samples } from '../results/samples.ts'
import { type Column, type Goal, renderGoals, renderSamples } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

/*
 * Measures the CPU time that traces and the request log cost, in one process of Sluice on one core.
 *
 * Traces are measured within one process. The flag of the header `traceparent` decides whether a call is traced, and short loads with and
 * without traces alternate. Two processes of the same code would not be comparable, because their memory and compiled code differ. The
 * target `again`, a second process with the same settings, shows this difference, which is up to 14 percent.
 *
 * The request log cannot be switched on per call. The cost of the log is therefore measured with two processes, and the figure includes the
 * difference between two processes of the same code.
 */

const LOADS: Readonly<Record<string, Load>> = {
  'whole, 64 callers': { shape: 'whole', callers: 64 },
  '64 streams': { shape: 'streams', callers: 64 },
}
const WARM_UP_SECONDS = 8
const QUICK_WARM_UP_SECONDS = 1

const TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331'
/** Headers of a call that is traced, and of a call that is not. The last two digits of `traceparent` are the flag. */
const SAMPLED = { traceparent: `${TRACE}-01` }
const UNSAMPLED = { traceparent: `${TRACE}-00` }

const BASE = 'default'
const UNTRACED = 'untraced'
const NO_LOG = 'no-request-log'
const TITLES: Readonly<Record<string, string>> = {
  [BASE]: 'default: request log, no traces',
  again: 'the same settings, another process',
  [UNTRACED]: 'with a collector, no call traced',
  traces: 'the same process, all calls traced',
  [NO_LOG]: 'without request log',
}

export const TELEMETRY: Section = {
  name: 'telemetry',
  summary: 'CPU time of traces and of the request log, on and off',
  title: '## Traces and request log',
  introduction: `One process of Sluice on one core, with 64 callers. The mock upstream sends whole answers at once, and streams of 64 tokens in 1.3 s.
With \`OTEL_EXPORTER_OTLP_ENDPOINT\`, each traced call exports its four spans to a mock
collector. The same process also runs calls that are not traced. *Without request log* sets
\`REQUEST_LOG_MS=0\`.`,
  async measure(run) {
    using core = new OneCore()
    const samples = await measureTelemetry(run, core)
    return [renderGoals(goalsOf(samples)), renderSamples(samples, TITLES, samples.loads, COLUMNS)]
  },
}

async function measureTelemetry(run: Run, core: OneCore): Promise<Samples> {
  const { isQuick } = run.options
  await using processes = run.processes()
  const targets = await startTargets(processes)
  for (const { pids } of targets) for (const pid of pids) core.take(pid)
  const warmUpSeconds = isQuick ? QUICK_WARM_UP_SECONDS : WARM_UP_SECONDS
  for (const { address } of targets)
    for (const load of Object.values(LOADS)) await runLoad(address, load, warmUpSeconds / 2)
  const samples = new Samples()
  const cells = Object.entries(LOADS).flatMap(([name, load]) => targets.map((target) => ({ name, load, target })))
  await run.rounds(cells, async ({ name, load, target }, round) => {
    const headers = target.name === 'traces' ? SAMPLED : UNSAMPLED
    const figures = await measureLoad(target, { ...load, headers }, run.seconds(2, 3))
    samples.add(target.name, name, round, figures)
    run.print(`${round} ${name}, ${target.name}: CPU ${figures.cpu.toFixed(3)}`)
  })
  return samples
}

async function startTargets(processes: Processes): Promise<Target[]> {
  const models = [upstreamModel('bench', await startUpstream(processes))]
  const script = './telemetry/collector.ts'
  const collector = urlOf(await processes.node({ name: 'collector', script, addressOn: 'stdout' }))
  const settings: Readonly<Record<string, Record<string, string>>> = {
    [BASE]: {},
    again: {},
    traces: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.origin },
    [NO_LOG]: { REQUEST_LOG_MS: '0' },
  }
  const targets: Target[] = []
  for (const [name, env] of Object.entries(settings)) {
    const sluice = await startSluice(processes, { name: `telemetry-${name}`, models, env })
    const pids = sluice.processes.map(({ pid }) => pid)
    const target = { name, address: sluice, pids, brokerPid: undefined }
    if (name === 'traces') targets.push({ ...target, name: UNTRACED })
    targets.push(target)
    await untilAnswered(async () => (await runLoad(sluice, { shape: 'whole', callers: 1 }, 0)).failure)
  }
  return targets
}

const COLUMNS: readonly Column[] = [
  { title: 'CPU per answer (ms) or token (µs)', figure: 'cpu', decimals: 3 },
  { title: 'CPU × default', figure: 'cpu', decimals: 3, ratioTo: BASE },
  { title: 'CPU × untraced', figure: 'cpu', decimals: 3, ratioTo: UNTRACED },
  { title: 'CPU × without request log', figure: 'cpu', decimals: 3, ratioTo: NO_LOG },
]

function goalsOf(samples: Samples): Goal[] {
  return samples.loads.flatMap((load): Goal[] => [
    {
      name: `CPU of a call with traces, ${load}`,
      measured: samples.ratio('traces', UNTRACED, load, 'cpu'),
      ...{ unit: '× without', max: 1.05, decimals: 3 },
    },
    {
      name: `CPU of a call with the request log, ${load}`,
      measured: samples.ratio(BASE, NO_LOG, load, 'cpu'),
      ...{ unit: '× without', max: 1.02, decimals: 3 },
    },
  ])
}
