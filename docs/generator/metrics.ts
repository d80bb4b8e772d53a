import { GAUGES, Metrics } from '#shared/lib/metrics.ts'
import { table } from './table.ts'

interface Metric {
  readonly name: string
  readonly type: string
  readonly labels: readonly string[]
  readonly help: string
}

/** Sections by the start of the metric's name; the last one has all other metrics. */
const SECTIONS: readonly (readonly [title: string, prefixes: readonly string[]])[] = [
  [
    'HTTP and calls',
    [
      'sluice_http',
      'sluice_attached',
      'sluice_calls',
      'sluice_fleet_calls',
      'sluice_project',
      'sluice_refusals',
      'sluice_cost',
      'sluice_waiting_calls',
      'sluice_websockets',
      'sluice_request',
      'sluice_job_',
      'sluice_jobs_total',
      'sluice_tokens',
    ],
  ],
  ['Durable jobs and webhooks', ['sluice_jobs', 'sluice_waiting_jobs', 'sluice_webhooks', 'sluice_dead_letters']],
  ['Scaling', ['sluice_workers_wanted', 'sluice_server_replicas_wanted', 'sluice_queue_empty']],
  ['Workers', ['sluice_pool', 'sluice_worker', 'sluice_queue', 'sluice_attempt', 'sluice_sandbox', 'sluice_server']],
  ['Process and configuration', ['sluice_']],
]

/** One table per section, with all metrics of Sluice. Default metrics of Node and the process are described by prom-client. */
export function metricTables(): string {
  const metrics = metricsOf()
  const shown = new Set<string>()
  const sections = SECTIONS.map(([title, prefixes]) => {
    const own = metrics.filter(({ name }) => !shown.has(name) && prefixes.some((prefix) => name.startsWith(prefix)))
    for (const { name } of own) shown.add(name)
    const rows = own.map(({ name, type, labels, help }) => [
      `\`${name}\``,
      type,
      labels.map((label) => `\`${label}\``).join(', '),
      help,
    ])
    return `## ${title}\n\n${table(['Metric', 'Type', 'Labels', 'Meaning'], rows)}\n`
  })
  return sections.join('\n')
}

function metricsOf(): Metric[] {
  const registered = new Metrics().registry.getMetricsAsArray() as unknown as (Omit<Metric, 'labels'> & {
    readonly labelNames: readonly string[]
  })[]
  const counted = registered.map(({ name, type, labelNames, help }) => ({ name, type, labels: labelNames, help }))
  const gauges = Object.entries(GAUGES).map(([name, { labels, help }]) => ({
    name,
    type: name.endsWith('_total') ? 'counter' : 'gauge',
    labels,
    help,
  }))
  return [...gauges, ...counted].filter(({ name }) => name.startsWith('sluice_'))
}
