import { execFileSync } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse, stringify } from 'yaml'
import { z } from 'zod'
import { jobsTopic } from '#shared/jobs/records.ts'
import { DASHBOARDS, dashboardJson } from '../../docs/generator/dashboards.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../support/stack.ts'
import { hasDeployTool } from './variables.ts'

/*
 * Checks the rules and dashboards of deploy/observability/. (1) Each metric that a rule or panel uses exists in a real run of all roles. (2) For
 * each alert, time series with its fault fire this alert and no other. (3) No alert fires in an hour of healthy load. The series of that hour
 * continue the measurements of a short real run at the same rates.
 */

const RULES = 'deploy/observability/rules.yaml'
const INTERVAL_S = 60
const HOUR = 3_600 / INTERVAL_S
const Rules = z.object({
  groups: z.array(
    z.object({
      rules: z.array(
        z.object({
          alert: z.string(),
          expr: z.string(),
          for: z.string(),
          annotations: z.record(z.string(), z.string()),
        }),
      ),
    }),
  ),
})
type Series = Readonly<Record<string, string>>

const rules = Rules.parse(parse(await readFile(RULES, 'utf8'))).groups.flatMap((group) => group.rules)
let stack: Stack
let upstream: ReturnType<typeof createServer>
let healthy: Series = {}
let broken: ReadonlyMap<string, number> = new Map()
let names: ReadonlySet<string> = new Set()

beforeAll(async () => {
  upstream = createServer((_, res) => res.writeHead(500, { 'content-type': 'application/json' }).end('{}'))
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve))
  const { port } = upstream.address() as AddressInfo
  const broke = { id: 'broke', engine: { type: 'openai', base_url: `http://127.0.0.1:${port}/v1` } }
  stack = await startStack({ models: [ECHO_MODEL, broke] })
  const call = async (model: string) => {
    const response = await stack.post('/v1/chat/completions', { model, messages: [{ role: 'user', content: 'hi' }] })
    await response.text()
    return response.status
  }
  for (let i = 0; i < 5; i++) expect(await call('echo-1')).toBe(200)
  const before = await scrape()
  for (let i = 0; i < 5; i++) expect(await call('echo-1')).toBe(200)
  healthy = continued(before, await scrape())
  for (let i = 0; i < 3; i++) await call('broke')
  await stack.broker.submit(jobsTopic('inference'), Buffer.from('no JSON'))
  broken = await until(async () => {
    const found = await scrape()
    return (found.get('sluice_dead_letters_total{pool="inference"}') ?? 0) > 0 ? found : undefined
  })
}, 60_000)

afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  upstream?.close()
})

/** Reads `/metrics` and returns the value of each series. The names of the metrics are added to `names`. */
async function scrape(): Promise<ReadonlyMap<string, number>> {
  const text = await (await stack.get('/metrics')).text()
  names = new Set([...names, ...[...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name = '']) => name)])
  const samples = [...text.matchAll(/^([a-z_]+(?:\{.*\})?) (\S+)$/gm)]
  return new Map(samples.map(([, series = '', value]) => [series, Number(value)]))
}

/** Continues the measurements for an hour, in the notation of promtool. A counter grows at its measured rate, and a gauge keeps its value. */
function continued(before: ReadonlyMap<string, number>, after: ReadonlyMap<string, number>): Series {
  const series: Record<string, string> = { up: `1x${HOUR}` }
  for (const [name, value] of after) {
    const isCounter = /_(total|count|sum|bucket)(\{|$)/.test(name)
    // The event-loop lag depends on the machine of the test, so its series are left out.
    if (!Number.isFinite(value) || name.startsWith('nodejs_eventloop_lag')) continue
    // Some gauges of Node.js have a name that ends in `_total`, like a counter. A gauge may have fallen, which promtool would treat as a reset,
    // so a negative step becomes 0.
    const step = isCounter ? Math.max(0, value - (before.get(name) ?? value)) : 0
    series[name] = `${decimal(value)}+${decimal(step)}x${HOUR}`
  }
  return series
}

/** Writes a number without an exponent, because promtool cannot read exponents. */
function decimal(value: number): string {
  return value.toFixed(6)
}

function labelled(series: string): string {
  const own = 'job="sluice",instance="a"'
  return series.endsWith('}') ? series.replace(/\}$/, `,${own}}`) : `${series}{${own}}`
}

interface Case {
  readonly series: Series
  readonly minutes: readonly number[]
  /** Alerts that must fire at each of these minutes, while no other alert fires. */
  readonly expected: readonly string[]
}

/**
 * Evaluates the rules for all cases with one run of promtool.
 *
 * @throws Error with the alerts that fired instead of the expected ones
 */
async function evaluate(cases: readonly Case[]): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-rules-'))
  const tests = cases.map(({ series, minutes, expected }) => ({
    interval: `${INTERVAL_S}s`,
    external_labels: { sluice_url: 'http://127.0.0.1:8080' },
    input_series: Object.entries(series).map(([name, values]) => ({ series: labelled(name), values })),
    promql_expr_test: minutes.map((minute) => ({
      expr: 'group by (alertname) (ALERTS{alertstate="firing"})',
      eval_time: `${minute}m`,
      exp_samples: expected.map((name) => ({ labels: `{alertname="${name}"}`, value: 1 })),
    })),
  }))
  const file = join(directory, 'test.yaml')
  const rule_files = [join(process.cwd(), RULES)]
  await writeFile(file, stringify({ rule_files, evaluation_interval: `${INTERVAL_S}s`, tests }))
  try {
    execFileSync('promtool', ['test', 'rules', file], { encoding: 'utf8', stdio: 'pipe' })
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string }
    throw new Error(stdout + stderr)
  } finally {
    await rm(directory, { recursive: true })
  }
}

/** Returns the series of the healthy run whose metrics occur in the rules. */
function relevant(): Series {
  const exprs = rules.map(({ expr }) => expr).join(' ')
  return Object.fromEntries(Object.entries(healthy).filter(([name]) => exprs.includes(name.replace(/\{.*/, ''))))
}

/** Series that changes from `before` to `after` five minutes after the start. */
const from5 = (before: number, after: number) => `${before}x4 ${after}x${HOUR - 5}`
/** Series that is 0 at first, and grows by `step` per minute from the fifth minute on. */
const grows = (step: number) => `0x4 0+${step}x${HOUR - 5}`
/** Counter that is 0 at first, and jumps to `by` five minutes before the end of the hour. */
const counts = (by: number) => `0x${HOUR - 6} ${by}x5`
const CALLS = 'sluice_http_requests_total{route="/v1/chat/completions",status="200",model="echo-1"}'
const QUEUED = 'sluice_fleet_calls{pool="inference",state="queued"}'
const ALIVE = 'sluice_workers{pool="inference",state="alive"}'
const WANTED = 'sluice_workers_wanted{pool="inference"}'
const EMPTY_IN = 'sluice_queue_empty_seconds{pool="inference"}'
const BUCKET = (le: string) =>
  `sluice_job_first_output_seconds_bucket{le="${le}",pool="inference",model="slow",stream="true"}`

/** For each alert: the series that its fault changes, with their values during the fault. All other series are those of the healthy run. */
const FAULTS: Readonly<Record<string, Series>> = {
  SluiceProcessDown: { up: from5(1, 0) },
  SluiceNoWorker: { [ALIVE]: from5(1, 0), [QUEUED]: from5(0, 3) },
  SluiceWorkerLost: { 'sluice_workers_lost_total{pool="inference"}': counts(1) },
  SluiceCallsWaitLong: { 'sluice_calls_oldest_seconds{pool="inference",model="echo-1"}': grows(60) },
  SluiceJobsWaitLong: { 'sluice_jobs_oldest_seconds{pool="inference",priority="normal",state="queued"}': grows(60) },
  SluiceTooFewWorkers: { [WANTED]: from5(0, 4), [EMPTY_IN]: from5(0, 90) },
  SluiceProjectFloods: {
    'sluice_project_calls{project="loud",state="queued"}': from5(0, 500),
    'sluice_project_calls{project="quiet",state="queued"}': from5(0, 150),
  },
  SluiceRefusals: { 'sluice_refusals_total{reason="kafka"}': grows(20) },
  SluiceErrors: { [CALLS.replace('200', '502')]: grows(20) },
  SluiceDependencyDown: { 'sluice_dependency_up{dependency="kafka"}': from5(1, 0) },
  SluiceDependencySlow: { 'sluice_dependency_latency_seconds{dependency="postgres"}': from5(0.01, 2) },
  SluiceServerFailing: { 'sluice_server_circuit_open{model="gpt",server="1"}': from5(0, 1) },
  SluiceServerSaturated: {
    'sluice_server_running{model="gpt",server="0"}': from5(1, 8),
    'sluice_server_concurrency_limit{model="gpt",server="0"}': `8x${HOUR}`,
  },
  SluiceModelSlow: { [BUCKET('10')]: `0x${HOUR}`, [BUCKET('30')]: grows(20), [BUCKET('+Inf')]: grows(20) },
  SluiceDeadLetters: { 'sluice_dead_letters_total{pool="inference"}': counts(1) },
  SluiceJobsUnpublished: { 'sluice_jobs_unpublished{pool="inference"}': from5(0, 7) },
  SluiceWebhooksLate: { sluice_webhooks_oldest_seconds: `3000+60x${HOUR}` },
  SluiceEventLoopBlocked: { nodejs_eventloop_lag_p99_seconds: from5(0.02, 0.6) },
  SluiceBodyMemoryFull: { sluice_request_body_bytes: from5(0, 95), sluice_request_body_bytes_max: `100x${HOUR}` },
  SluiceModelsFileInvalid: { sluice_model_config_invalid: from5(0, 1) },
  SluiceRequestLogDropsRows: { sluice_request_log_dropped_total: counts(40) },
}

describe.skipIf(!hasDeployTool('promtool'))('the Prometheus rules', () => {
  it('are valid', () => {
    expect(execFileSync('promtool', ['check', 'rules', RULES], { encoding: 'utf8' })).toContain(`${rules.length} rules`)
  })

  it('do not fire during one hour of load on a healthy service', async () => {
    expect(Object.keys(healthy).length, 'series').toBeGreaterThan(300)
    await evaluate([{ series: healthy, minutes: [10, 30, 60], expected: [] }])
  })

  it('fire for the fault that each rule describes, and for no other fault', async () => {
    expect(Object.keys(FAULTS)).toEqual(expect.arrayContaining(rules.map(({ alert }) => alert)))
    for (const name of Object.values(FAULTS).flatMap((series) => Object.keys(series))) {
      const metric = name.replace(/\{.*/, '').replace(/_bucket$/, '')
      expect(metric === 'up' || names.has(metric), `the run has ${metric}`).toBe(true)
    }
    const cases = Object.entries(FAULTS).map(([alert, fault]) => {
      return { series: { ...relevant(), ...fault }, minutes: [59], expected: [alert] }
    })
    // If the time to empty the queue is unknown, then its metric has no value.
    cases.push({
      series: { ...relevant(), [WANTED]: from5(0, 4), [EMPTY_IN]: `_x${HOUR}` },
      minutes: [59],
      expected: ['SluiceTooFewWorkers'],
    })
    await evaluate(cases)
  })

  it('fire no alert, not even SluiceTooFewWorkers, for bursts of jobs that end before the next burst', async () => {
    const bursts = Array.from({ length: HOUR / 4 }, () => '90 40 5 0').join(' ')
    // The metric for the wanted number of workers falls with a delay of five minutes. The test therefore keeps it at 4 between the bursts, while
    // the time to empty the queue varies.
    const series = { ...relevant(), [WANTED]: `4x${HOUR}`, [EMPTY_IN]: bursts }
    await evaluate([{ series, minutes: [20, 40, 59], expected: [] }])
  })

  it('fire for the metrics of a run with a failing upstream and a dead letter', async () => {
    const circuit = 'sluice_server_circuit_open{model="broke",server="0"}'
    const letters = 'sluice_dead_letters_total{pool="inference"}'
    const [isOpen = 0, dead = 0] = [broken.get(circuit), broken.get(letters)]
    await evaluate([
      { series: { ...relevant(), [circuit]: from5(0, isOpen) }, minutes: [30], expected: ['SluiceServerFailing'] },
      { series: { ...relevant(), [letters]: counts(dead) }, minutes: [59], expected: ['SluiceDeadLetters'] },
    ])
  })
})

describe('dashboards and rules', () => {
  const Panels = z.object({
    uid: z.string(),
    templating: z.object({ list: z.array(z.object({ name: z.string() })) }),
    panels: z.array(
      z.object({
        ...{ id: z.int(), title: z.string(), gridPos: z.record(z.string(), z.int()) },
        targets: z.array(z.object({ expr: z.string(), refId: z.string() })).min(1),
      }),
    ),
  })
  const panels = Object.keys(DASHBOARDS).flatMap((name) => Panels.parse(JSON.parse(dashboardJson(name))).panels)

  it('name only metrics that a run of all roles exports', () => {
    const exprs = [
      ...rules.map(({ expr }) => expr),
      ...panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
    ]
    const used = new Set(exprs.flatMap((expr) => expr.match(/\b(sluice|nodejs|process)_[a-z0-9_]+/g) ?? []))
    const missing = [...used].filter((name) => !names.has(name) && !names.has(name.replace(/_(bucket|sum|count)$/, '')))
    expect(used.size, 'metrics').toBeGreaterThan(30)
    expect(missing).toEqual([])
  })

  it('link to sections of the runbook, each of which names an existing panel', async () => {
    const runbook = await readFile('docs/operate/runbook.md', 'utf8')
    const sections = [...runbook.matchAll(/^## (.+)$/gm)].map(([, title = '']) => title)
    const anchors = sections.map((title) =>
      title
        .toLowerCase()
        .replaceAll(/[^a-z0-9 -]/g, '')
        .replaceAll(' ', '-'),
    )
    for (const { annotations } of rules) expect(anchors).toContain(annotations.runbook_url?.split('#')[1])
    const named = [...runbook.matchAll(/^Panel: \*(.+)\* of/gm)].map(([, title]) => title)
    expect(named).toHaveLength(7)
    for (const title of named) expect(panels.map((panel) => panel.title)).toContain(title)
  })
})
