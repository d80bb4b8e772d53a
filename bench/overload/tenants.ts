import { setTimeout as sleep } from 'node:timers/promises'
import { newId } from '#shared/lib/id.ts'
import { postChat } from '../load/chat.ts'
import type { Address } from '../load/connection.ts'
import { openPostgres, type Postgres } from '../machine/servers.ts'
import { createKey, startSluice, untilAnswered } from '../machine/sluice.ts'
import { percentile, Samples } from '../results/samples.ts'
import { renderGoals, renderSamples } from '../results/tables.ts'
import type { Run } from '../section.ts'

const SLOTS = 12
const JOB_MS = 200
const CONTENT = `!echo tokens=1 first_ms=${JOB_MS}`
/** Intervals in milliseconds at which tenant B sends calls and submits durable jobs. */
const CALL_INTERVAL_MS = 250
const DURABLE_INTERVAL_MS = 500
const FLOOD_CALLS = 100
const FLOOD_SUBMITS = 16

const FLOODS = ['alone', 'next to 100 calls', 'next to durable jobs'] as const
type Flood = (typeof FLOODS)[number]
const TITLES: Readonly<Record<string, string>> = { embedded: 'Sluice, one process', kafka: 'Sluice, Kafka' }

export async function measureTenants(run: Run): Promise<string[]> {
  const postgres = await openPostgres()
  const samples = new Samples()
  await measureService(run, samples, undefined)
  const skipped = typeof postgres === 'string' ? [`Tenants through Kafka were not measured: ${postgres}.`] : []
  if (typeof postgres !== 'string') {
    await using server = postgres
    await measureService(run, samples, server)
  }
  const goals = samples.targets.flatMap((target) =>
    FLOODS.slice(1).flatMap((flood) =>
      ['call', 'durable'].map((kind) => ({
        ...{
          name: `p99 wait of a ${kind === 'call' ? 'call' : 'durable job'} ${flood}, ${TITLES[target]}`,
          unit: 'ms',
          decimals: 0,
        },
        measured: samples.median(target, flood, `${kind}P99`),
        // Goal for the wait of tenant B: at most twice its wait without the flood of tenant A, plus the duration of one job.
        max: Math.round(2 * samples.median(target, 'alone', `${kind}P99`) + JOB_MS),
      })),
    ),
  )
  const columns = ['call', 'durable'].flatMap((kind) => [
    { title: `${kind} p50 ms`, figure: `${kind}P50`, decimals: 0 },
    { title: 'p99 ms', figure: `${kind}P99`, decimals: 0 },
    { title: 'refused', figure: `${kind}Refused`, decimals: 0 },
  ])
  return [renderGoals(goals), renderSamples(samples, TITLES, FLOODS, columns), ...skipped]
}

interface Tenants {
  readonly a: Address
  readonly b: Address
}

/** @param postgres The database of the roles that run with Kafka. If undefined, then Sluice runs in one process. */
async function measureService(run: Run, samples: Samples, postgres: Postgres | undefined): Promise<void> {
  await using processes = run.processes()
  const name = postgres ? 'kafka' : 'embedded'
  const sluice = await startSluice(processes, {
    name: `tenants-${name}`,
    models: ['{ id: echo-1, engine: { type: echo } }'],
    kafka: postgres && (await run.kafka()),
    workers: ['inference', 'scheduler'],
    env: {
      ...{ INFERENCE_SLOTS: String(SLOTS), LOG_LEVEL: 'warn' },
      ...(postgres && { DATABASE_URL: await postgres.createDatabase('tenants') }),
    },
  })
  const tenants: Tenants = {
    a: { url: sluice.url, key: await createKey(sluice, '--name', 'a') },
    b: { url: sluice.url, key: await createKey(sluice, '--name', 'b') },
  }
  for (const tenant of Object.values(tenants)) await untilAnswered(() => problemOf(tenant))
  const seconds = run.seconds(5, 20)
  await measureWaits(tenants, 'alone', run.options.isQuick ? 1 : 5)
  for (const flood of FLOODS) {
    run.signal.throwIfAborted()
    const figures = await measureWaits(tenants, flood, seconds)
    samples.add(name, flood, 1, figures)
    run.print(
      `tenant ${flood}, ${name}: wait p99 ${figures.callP99.toFixed(0)} ms, durable ${figures.durableP99.toFixed(0)} ms`,
    )
  }
}

async function problemOf(tenant: Address): Promise<string | undefined> {
  const reply = await postChat(tenant, 'echo-1', 'ready').catch(String)
  if (typeof reply === 'string') return reply
  return reply.status === 200 ? undefined : `status ${reply.status}`
}

async function measureWaits({ a, b }: Tenants, flood: Flood, seconds: number) {
  const over = new AbortController()
  const flooding = floodWith(a, flood, over.signal)
  // Waits until tenant A has taken all slots.
  await sleep(2 * JOB_MS)
  const until = performance.now() + seconds * 1_000
  const run = newId('', 12)
  const [calls, durable] = await Promise.all([
    paced(CALL_INTERVAL_MS, until, () => postChat(b, 'echo-1', CONTENT)),
    // The idempotency key makes this call a durable job, but its response has the usual form.
    paced(DURABLE_INTERVAL_MS, until, (nth) =>
      postChat(b, 'echo-1', CONTENT, {}, { 'idempotency-key': `b-${run}-${nth}` }),
    ),
  ])
  over.abort()
  await flooding
  return {
    ...{ callP50: percentile(calls.waits, 0.5), callP99: percentile(calls.waits, 0.99), callRefused: calls.refused },
    durableP50: percentile(durable.waits, 0.5),
    durableP99: percentile(durable.waits, 0.99),
    durableRefused: durable.refused,
  }
}

async function paced(intervalMs: number, until: number, send: (nth: number) => Promise<{ readonly status: number }>) {
  const results = { waits: [] as number[], refused: 0 }
  const one = async (nth: number) => {
    const startedAt = performance.now()
    const { status } = await send(nth).catch(() => ({ status: 0 }))
    if (status === 200) results.waits.push(Math.max(0, performance.now() - startedAt - JOB_MS))
    else results.refused++
  }
  const calls: Promise<void>[] = []
  for (let nth = 0; performance.now() < until; nth++) {
    calls.push(one(nth))
    await sleep(intervalMs)
  }
  await Promise.all(calls)
  return results
}

async function floodWith(tenant: Address, flood: Flood, over: AbortSignal): Promise<void> {
  if (flood === 'alone') return
  const isDurable = flood === 'next to durable jobs'
  const headers: Record<string, string> = isDurable ? { prefer: 'respond-async' } : {}
  const loop = async () => {
    while (!over.aborted) {
      const { status } = await postChat(tenant, 'echo-1', CONTENT, {}, headers).catch(() => ({ status: 0 }))
      if (status !== 200 && status !== 202) await sleep(JOB_MS)
    }
  }
  await Promise.all(Array.from({ length: isDurable ? FLOOD_SUBMITS : FLOOD_CALLS }, loop))
}
