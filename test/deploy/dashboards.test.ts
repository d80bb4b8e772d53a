import { appendFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, inject, it } from 'vitest'
import { z } from 'zod'
import { jobsTopic } from '#shared/jobs/records.ts'
import { DASHBOARDS, dashboardJson } from '../../docs/generator/dashboards.ts'
import { openPostgresDatabase } from '../support/jobs/stores.ts'
import { freePort } from '../support/processes/free-ports.ts'
import { startUpstream } from '../support/processes/upstream.ts'
import { scriptedAdapter } from '../support/sandbox/code-calls.ts'
import { ECHO_MODEL, startStack, until } from '../support/stack.ts'
import { startPrometheus } from './prometheus.ts'
import { hasDeployTool } from './variables.ts'

/* Checks with a real Prometheus that each panel of deploy/observability/dashboards/ shows data while a service with Kafka and Postgres is busy. */

const CHAT = '/v1/chat/completions'
const LOAD_MS = 10_000
const Panels = z.object({
  panels: z.array(z.object({ title: z.string(), targets: z.array(z.object({ expr: z.string() })).min(1) })),
})

/**
 * Returns the query that Grafana would send for a panel, with values for the variables of the dashboard. Time ranges are shortened, because the
 * test runs for seconds.
 */
function queryOf(expr: string, variables: Readonly<Record<string, string>>): string {
  return expr
    .replaceAll('$__rate_interval', '5s')
    .replaceAll('$__range', '1h')
    .replaceAll('[1h]', '[10s]')
    .replaceAll(/\$(\w+)/g, (whole, name: string) => variables[name] ?? whole)
}

const missing =
  inject('kafka') && inject('postgres')
    ? hasDeployTool('prometheus')
      ? undefined
      : 'no Prometheus (apt-get install prometheus)'
    : 'no Kafka or no Postgres'
if (missing) process.stderr.write(`The test of dashboards is skipped: ${missing}\n`)

describe.skipIf(missing)('the Grafana dashboards', () => {
  it('show data in every panel for a busy service', { timeout: 240_000 }, async () => {
    await using stack = new AsyncDisposableStack()
    const upstream = stack.use(
      await startUpstream((_, answer) => {
        answer.json({
          choices: [{ index: 0, message: { content: 'Hello' }, finish_reason: 'stop' }],
          usage: { prompt_tokens: 30, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 20 } },
        })
      }),
    )
    const database = stack.use(await openPostgresDatabase(inject('postgres') ?? ''))
    const remote = {
      ...{ id: 'remote-1', engine: { type: 'openai', base_url: `${upstream.url}/v1` } },
      price: { input_per_million: 1, output_per_million: 2 },
    }
    const service = stack.use(
      await startStack({
        kafka: inject('kafka') ?? '',
        models: [ECHO_MODEL, remote],
        sandboxes: [scriptedAdapter(() => ({ type: 'exit', exitCode: 0 }))],
        settings: { DATABASE_URL: database.url, WEBHOOK_ALLOW_PRIVATE: 'true', JOBS_MAX: '50' },
      }),
    )
    const prometheus = stack.use(await startPrometheus())
    const post = async (path: string, body: object) => {
      const response = await service.post(path, body)
      await response.text()
      return response.status
    }
    const chat = (content: string, more: object = {}) =>
      post(CHAT, { model: 'echo-1', messages: [{ role: 'user', content }], ...more })
    await until(async () => (await chat('ready?')) === 200, { withinMs: 60_000 })
    prometheus.scrape('sluice', service.url)

    const webhook = { url: `http://127.0.0.1:${await freePort()}/hook` }
    await service.broker.submit(jobsTopic('inference'), Buffer.from('no JSON'))
    // The age of durable jobs is measured at intervals. One job runs for longer than an interval.
    const slow = { model: 'echo-1', messages: [{ role: 'user', content: '!echo first_ms=12000\nslow' }] }
    const calls: Promise<unknown>[] = [post('/v1/jobs', { endpoint: CHAT, body: slow })]
    for (const end = Date.now() + LOAD_MS; Date.now() < end; await sleep(250)) {
      const body = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
      calls.push(
        ...[chat('!echo tokens=20 delay_ms=20', { stream: true }), chat('remote', { model: 'remote-1' })],
        ...[chat('', { model: 'remote-1', stream: true }), chat('!echo fail=upstream_error')],
        ...[
          post('/v1/jobs', { endpoint: CHAT, body, webhook }),
          post('/v1/tools/code', { lang: 'python', code: 'print(1)' }),
        ],
      )
    }
    await appendFile(join(service.dataDir, 'models.yaml'), '\n')
    // The number of calls exceeds JOBS_MAX, so that some are refused and appear in the panels of refusals.
    calls.push(...Array.from({ length: 150 }, () => chat('!echo first_ms=2000\nmany')))
    await Promise.all(calls)
    await sleep(2_000)

    const [of] = await prometheus.queryRange('sluice_project_requests_total')
    const variables = { model: 'remote-1', project: of?.metric.project ?? '' }
    const empty: string[] = []
    for (const name of Object.keys(DASHBOARDS)) {
      for (const { title, targets } of Panels.parse(JSON.parse(dashboardJson(name))).panels) {
        const series = await Promise.all(targets.map(({ expr }) => prometheus.queryRange(queryOf(expr, variables))))
        const values = series.flat().flatMap((one) => one.values.map(([, value]) => Number(value)))
        if (!values.some(Number.isFinite)) empty.push(`${name}: ${title}`)
      }
    }
    expect(empty, 'panels without data').toEqual([])
  })
})
