import packageJson from '../../package.json' with { type: 'json' }
import { openPostgres, openRedis } from '../machine/servers.ts'
import { Samples } from '../results/samples.ts'
import { type Column, renderGoals, renderSamples } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'
import type { DurableFigures } from './driver.ts'
import { type DurableTarget, startTargets } from './targets.ts'

const LOADS = {
  'submit, 1 caller': ['submit', 1],
  'submit, 32 callers': ['submit', 32],
  'submit with workers, 32 callers': ['busy', 32],
  'until completed, 1 caller': ['whole', 1],
  'until completed, 32 callers': ['whole', 32],
} as const
type LoadName = keyof typeof LOADS
/**
 * Definition of a warm system: the best rate so far has risen by less than 3 % in the last 8 loads. The JVM of Kafka compiles its code for
 * about a minute, so a system needs many loads until it is warm.
 */
const WARM_UP: LoadName = 'until completed, 32 callers'
const WARM = { rise: 0.03, loads: 8, loadsMax: 45, quickLoadsMax: 1 } as const
const LOAD_TIMEOUT_MS = 300_000

const TITLES: Readonly<Record<string, string>> = {
  bullmq: 'BullMQ, Redis',
  'pg-boss': 'pg-boss, Postgres',
  library: 'Sluice, library, Postgres',
  'library-sqlite': 'Sluice, library, SQLite',
  'http-bare': 'HTTP alone, stores nothing',
  http: 'Sluice, HTTP, Kafka and Postgres',
  'http-sqlite': 'Sluice, HTTP, one process, SQLite',
}

export const DURABLE: Section = {
  name: 'durable',
  summary: 'durable jobs, next to BullMQ on Redis and pg-boss on Postgres',
  title: '## Durable jobs',
  introduction: `Each system answers a submit, and counts a job as completed, only after an fsync. BullMQ has a Redis with \`appendonly yes\` and
\`appendfsync always\`. pg-boss and *Sluice, library* share a Postgres with default settings, and *SQLite* syncs its log before each answer.
Each job has 400 bytes, does nothing and returns 90 bytes. A *library* runs in the process of its callers, 32 jobs at once.
*Sluice, HTTP* is called with \`Prefer: respond-async\`: an ingress, a worker and a scheduler with Kafka and Postgres, or \`npm start\`.
*HTTP alone* parses a job and answers 202: a lower bound for submits over HTTP.

**Submit**: no worker runs; *completed/s* is how fast the workers empty the queue afterwards. **Submit with workers**: the workers
run. **Until completed**: each caller submits a job and waits for its end. pg-boss polls, at most twice per second. *CPU* is per
job, from its submit to its end; *servers* are Redis, Postgres and Kafka.`,
  async measure(run) {
    const { samples, skipped } = await measureDurable(run)
    const goals = GOALS.map(({ target, load, min }) => ({
      name: `${load}, ${TITLES[target]}`,
      measured: samples.ratio(target, 'bullmq', load, 'perSecond'),
      unit: '× BullMQ',
      min,
    }))
    return [renderGoals(goals), renderSamples(samples, TITLES, samples.loads, COLUMNS), ...skipped]
  },
}

async function measureDurable(run: Run): Promise<{ samples: Samples; skipped: string[] }> {
  await using redis = await orReason(openRedis(run.dir))
  await using postgres = await orReason(openPostgres())
  await using processes = run.processes()
  const reasons = [
    redis.reason && `BullMQ was not measured: ${redis.reason}.`,
    postgres.reason && `The systems on Postgres were not measured: ${postgres.reason}.`,
  ]
  const skipped = reasons.filter((reason) => reason !== undefined)
  for (const reason of skipped) run.print(reason)
  const { bullmq, 'pg-boss': pgBoss } = packageJson.devDependencies
  if (redis.server) run.versions.add(redis.server.version).add(`BullMQ ${bullmq}`)
  if (postgres.server) run.versions.add(postgres.server.version).add(`pg-boss ${pgBoss}`)
  const servers = { kafka: await run.kafka(), redis: redis.server, postgres: postgres.server }
  const targets = await startTargets(processes, servers)
  for (const target of targets) await warmUp(run, target)
  const samples = new Samples()
  const loads = Object.keys(LOADS) as LoadName[]
  const cells = loads.flatMap((load) => targets.map((target) => ({ load, target })))
  await run.rounds(cells, async ({ load, target }, round) => {
    const before = target.cpuMs()
    const figures = await runLoad(target, load, run.seconds(1, 2))
    const after = target.cpuMs()
    const perJob = (part: 'own' | 'servers') => (after[part] - before[part]) / figures.jobs
    // The bare server stores no jobs, so no queue exists that workers could empty. The rate of completed jobs is therefore not a number
    // (NaN).
    const completedPerSecond = target.name === 'http-bare' ? Number.NaN : figures.completedPerSecond
    const cpu = { cpu: perJob('own'), serverCpu: perJob('servers') }
    samples.add(target.name, load, round, { ...figures, completedPerSecond, ...cpu })
    run.print(`${round} ${load}, ${target.name}: ${figures.perSecond.toFixed(0)}/s, p50 ${figures.p50.toFixed(2)} ms`)
  })
  return { samples, skipped }
}

async function warmUp(run: Run, target: DurableTarget): Promise<void> {
  const { isQuick } = run.options
  const seconds = isQuick ? 0.5 : 2
  run.print(`warming up ${target.name}`)
  for (const load of Object.keys(LOADS) as LoadName[]) await runLoad(target, load, seconds)
  let best = 0
  const loadsMax = isQuick ? WARM.quickLoadsMax : WARM.loadsMax
  for (let loads = 0, sinceRise = 0; loads < loadsMax && sinceRise < WARM.loads; loads++) {
    run.signal.throwIfAborted()
    const { perSecond } = await runLoad(target, WARM_UP, seconds)
    sinceRise = perSecond > best * (1 + WARM.rise) ? 0 : sinceRise + 1
    best = Math.max(best, perSecond)
  }
}

async function runLoad({ name, url }: DurableTarget, load: LoadName, seconds: number): Promise<DurableFigures> {
  const [shape, callers] = LOADS[load]
  const signal = AbortSignal.timeout(LOAD_TIMEOUT_MS)
  const response = await fetch(new URL(`/${shape}/${callers}/${seconds}`, url), { signal })
  const text = await response.text()
  if (!response.ok) throw new Error(`durable jobs of ${name}: ${text}`)
  return JSON.parse(text) as DurableFigures
}

async function orReason<T extends AsyncDisposable>(opening: Promise<T | string>) {
  const opened = await opening
  const [server, reason] = typeof opened === 'string' ? [undefined, opened] : [opened, undefined]
  return { server, reason, [Symbol.asyncDispose]: async () => await server?.[Symbol.asyncDispose]() }
}

const COLUMNS: readonly Column[] = [
  { title: 'jobs/s', figure: 'perSecond', decimals: 0 },
  { title: '× BullMQ', figure: 'perSecond', decimals: 2, ratioTo: 'bullmq' },
  { title: 'p50 ms', figure: 'p50', decimals: 2 },
  { title: 'p99 ms', figure: 'p99', decimals: 2 },
  { title: 'completed/s', figure: 'completedPerSecond', decimals: 0 },
  { title: '× BullMQ', figure: 'completedPerSecond', decimals: 2, ratioTo: 'bullmq' },
  { title: 'CPU ms', figure: 'cpu', decimals: 3 },
  { title: 'servers CPU ms', figure: 'serverCpu', decimals: 3 },
]

const GOALS: readonly { target: string; load: LoadName; min: number }[] = [
  { target: 'library', load: 'submit, 1 caller', min: 1 },
  { target: 'library-sqlite', load: 'submit, 1 caller', min: 1 },
  { target: 'library', load: 'submit, 32 callers', min: 1 },
  { target: 'library-sqlite', load: 'submit, 32 callers', min: 1 },
  { target: 'http', load: 'submit, 32 callers', min: 0.75 },
  { target: 'http', load: 'until completed, 32 callers', min: 1 },
]
