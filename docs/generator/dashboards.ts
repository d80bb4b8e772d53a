/*
 * The Grafana dashboards of deploy/observability/dashboards/, one JSON file each. A panel is a title, a unit and its queries. If a
 * panel answers a question of the runbook (docs/operate/runbook.md), then the runbook refers to the panel by its title.
 */

/** `up` and `open` are states of 0 or 1, shown as colours over time. `event` is a count per interval, shown as bars. */
type Unit = 's' | 'short' | 'percentunit' | 'reqps' | 'currencyUSD' | 'bytes' | 'up' | 'open' | 'event'
type Query = readonly [expr: string, legend: string]
type Panel = readonly [title: string, unit: Unit, ...queries: Query[]]

interface Dashboard {
  readonly title: string
  /** Label by which a reader can filter the dashboard, and a metric from which the values of the label are read. */
  readonly variable?: readonly [label: string, metric: string]
  readonly panels: readonly Panel[]
}

const QUANTILES = [0.5, 0.95, 0.99]
const COLUMNS = 24
const WIDTH = 12
const HEIGHT = 8

/** Returns a query for a gauge whose series are mostly 0. Only series that were above 0 at some time in the panel's range are shown. */
function usedOf(metric: string, labels: string, select = ''): string {
  return `max by (${labels}) (${metric}${select}) and max by (${labels}) (max_over_time(${metric}${select}[$__range])) > 0`
}

function quantilesOf(metric: string, select = ''): Query[] {
  return QUANTILES.map((q) => [
    `histogram_quantile(${q}, sum by (le) (rate(${metric}_bucket{${select}}[$__rate_interval])))`,
    `p${q * 100}`,
  ])
}

const OVERVIEW: Dashboard = {
  title: 'Sluice: overview',
  panels: [
    [
      'Calls per second by status',
      'reqps',
      ['sum by (status) (rate(sluice_http_requests_total[$__rate_interval]))', '{{status}}'],
    ],
    [
      'Refused calls by reason',
      'reqps',
      ['sum by (reason) (rate(sluice_refusals_total[$__rate_interval])) > 0', '{{reason}}'],
    ],
    [
      'Waiting and running calls by pool',
      'short',
      [usedOf('sluice_fleet_calls', 'pool, state'), '{{pool}} {{state}}'],
      [
        `sum by (pool) (${usedOf('sluice_jobs', 'pool, priority', '{state="queued"}')})`,
        '{{pool}} durable jobs queued',
      ],
    ],
    ['Oldest waiting call by model', 's', ['max by (model) (sluice_calls_oldest_seconds)', '{{model}}']],
    ['Time until the queue is empty', 's', [usedOf('sluice_queue_empty_seconds', 'pool'), '{{pool}}']],
    [
      'Workers: wanted, alive, suspected',
      'short',
      [usedOf('sluice_workers_wanted', 'pool'), '{{pool}} wanted'],
      [usedOf('sluice_workers', 'pool, state'), '{{pool}} {{state}}'],
    ],
    [
      'Waiting calls by project',
      'short',
      ['topk(10, sum by (project) (sluice_project_calls{state="queued"}))', '{{project}}'],
    ],
    [
      'First output, 95th percentile by model',
      's',
      [
        'histogram_quantile(0.95, sum by (model, le) (rate(sluice_job_first_output_seconds_bucket{stream="true"}[$__rate_interval])))',
        '{{model}}',
      ],
    ],
    [
      'Run time of an attempt, 95th percentile by model',
      's',
      [
        'histogram_quantile(0.95, sum by (model, le) (rate(sluice_attempt_duration_seconds_bucket[$__rate_interval])))',
        '{{model}}',
      ],
    ],
    ['Dependencies answer', 'up', ['min by (dependency) (sluice_dependency_up)', '{{dependency}}']],
    [
      'Changes',
      'event',
      ['changes(sluice_models_loaded_timestamp_seconds[$__rate_interval]) > 0', 'models file loaded: {{instance}}'],
      ['changes(process_start_time_seconds{job="sluice"}[$__rate_interval]) > 0', 'process started: {{instance}}'],
      ['max(sluice_model_config_invalid) > 0', 'models file invalid'],
    ],
    ['Cost per hour', 'currencyUSD', ['sum by (model) (rate(sluice_cost_usd_total[1h])) * 3600', '{{model}}']],
    ['Webhook messages that wait', 'short', ['max(sluice_webhooks_pending)', 'pending']],
    ['Oldest webhook message', 's', ['max(sluice_webhooks_oldest_seconds)', 'oldest']],
  ],
}

const MODEL: Dashboard = {
  title: 'Sluice: one model',
  variable: ['model', 'sluice_waiting_calls'],
  panels: [
    ['Queue time', 's', ...quantilesOf('sluice_job_queue_seconds', 'model="$model"')],
    ['Time to first token', 's', ...quantilesOf('sluice_job_first_output_seconds', 'model="$model",stream="true"')],
    ['Time per output token', 's', ...quantilesOf('sluice_job_output_token_seconds', 'model="$model"')],
    ['Run time of an attempt', 's', ...quantilesOf('sluice_attempt_duration_seconds', 'model="$model"')],
    [
      'Attempts by outcome',
      'reqps',
      ['sum by (outcome) (rate(sluice_attempts_total{model="$model"}[$__rate_interval]))', '{{outcome}}'],
    ],
    [
      'Tokens per second',
      'short',
      ['sum by (direction) (rate(sluice_tokens_total{model="$model"}[$__rate_interval]))', '{{direction}}'],
    ],
    [
      'Calls at each server, and its limit',
      'short',
      ['sum by (server) (sluice_server_running{model="$model"})', 'server {{server}}'],
      ['sum by (server) (sluice_server_concurrency_limit{model="$model"})', 'limit {{server}}'],
    ],
    [
      'Circuit breakers that are open',
      'open',
      ['max by (server) (sluice_server_circuit_open{model="$model"})', 'server {{server}}'],
    ],
    [
      'Prompt tokens from the prefix cache',
      'percentunit',
      [
        'sum by (server) (rate(sluice_server_prompt_tokens_total{model="$model",cache="hit"}[$__rate_interval])) / sum by (server) (rate(sluice_server_prompt_tokens_total{model="$model"}[$__rate_interval]))',
        'server {{server}}',
      ],
    ],
    ['Servers wanted', 'short', ['max(sluice_server_replicas_wanted{model="$model"})', 'wanted']],
    [
      'Waiting calls and durable jobs',
      'short',
      ['sum(sluice_waiting_calls{model="$model"})', 'calls'],
      ['sum(max by (priority) (sluice_waiting_jobs{model="$model"}))', 'durable jobs'],
    ],
  ],
}

const PROJECT: Dashboard = {
  title: 'Sluice: one project',
  variable: ['project', 'sluice_project_requests_total'],
  panels: [
    [
      'Calls per second by outcome',
      'reqps',
      ['sum by (outcome) (rate(sluice_project_requests_total{project="$project"}[$__rate_interval]))', '{{outcome}}'],
    ],
    ['Waiting and running calls', 'short', ['sum by (state) (sluice_project_calls{project="$project"})', '{{state}}']],
    ['Oldest waiting call', 's', ['max(sluice_project_oldest_seconds{project="$project"})', 'oldest']],
    [
      'Tokens per second',
      'short',
      ['sum by (direction) (rate(sluice_project_tokens_total{project="$project"}[$__rate_interval]))', '{{direction}}'],
    ],
    [
      'Cost per hour',
      'currencyUSD',
      ['sum by (model) (rate(sluice_cost_usd_total{project="$project"}[1h])) * 3600', '{{model}}'],
    ],
  ],
}

const DEPENDENCIES: Dashboard = {
  title: 'Sluice: Kafka, Postgres and S3',
  panels: [
    [
      'Dependencies answer',
      'up',
      ['min by (dependency, instance) (sluice_dependency_up)', '{{dependency}} {{instance}}'],
    ],
    ['Time of a small request', 's', ['max by (dependency) (sluice_dependency_latency_seconds)', '{{dependency}}']],
    ['Records in Kafka without acknowledgement', 'short', ['max by (pool) (sluice_queue_unacked_records)', '{{pool}}']],
    ['Durable jobs without a record', 'short', ['max by (pool) (sluice_jobs_unpublished)', '{{pool}}']],
    [
      'Records published again',
      'reqps',
      ['sum by (pool) (rate(sluice_jobs_republished_total[$__rate_interval]))', '{{pool}}'],
    ],
    ['Dead letters', 'event', ['sum by (pool) (increase(sluice_dead_letters_total[$__rate_interval]))', '{{pool}}']],
    ['Durable jobs by state', 'short', ['sum by (state) (max by (pool, priority, state) (sluice_jobs))', '{{state}}']],
    ['Oldest durable job by state', 's', [usedOf('sluice_jobs_oldest_seconds', 'pool, state'), '{{pool}} {{state}}']],
    ['Webhook attempts', 'reqps', ['sum by (outcome) (rate(sluice_webhooks_total[$__rate_interval]))', '{{outcome}}']],
    [
      'Rows of the request log that were dropped',
      'reqps',
      ['sum(rate(sluice_request_log_dropped_total[$__rate_interval]))', 'dropped'],
    ],
  ],
}

const WORKERS: Dashboard = {
  title: 'Sluice: workers',
  panels: [
    ['Workers by state', 'short', [usedOf('sluice_workers', 'pool, state'), '{{pool}} {{state}}']],
    [
      'Workers that were lost',
      'event',
      ['max by (pool) (increase(sluice_workers_lost_total[$__rate_interval]))', '{{pool}}'],
    ],
    [
      'Calls and jobs that ran again',
      'reqps',
      ['sum by (pool, reason) (rate(sluice_job_retries_total[$__rate_interval]))', '{{pool}} {{reason}}'],
    ],
    [
      'Durable jobs of lost workers',
      'reqps',
      ['sum by (outcome) (rate(sluice_jobs_reaped_total[$__rate_interval]))', '{{outcome}}'],
    ],
    [
      'Slots in use',
      'percentunit',
      ['sum by (pool) (sluice_pool_running) / sum by (pool) (sluice_pool_slots)', '{{pool}}'],
    ],
    ['Calls held without a slot', 'short', ['sum by (pool) (sluice_worker_parked_calls)', '{{pool}}']],
    [
      'CPU of each process',
      'percentunit',
      ['rate(process_cpu_seconds_total{job="sluice"}[$__rate_interval])', '{{instance}}'],
    ],
    ['Event-loop delay, 99th percentile', 's', ['nodejs_eventloop_lag_p99_seconds{job="sluice"}', '{{instance}}']],
    ['Memory of each process', 'bytes', ['process_resident_memory_bytes{job="sluice"}', '{{instance}}']],
    [
      'Sandbox runs by outcome',
      'reqps',
      ['sum by (outcome) (rate(sluice_sandbox_runs_total[$__rate_interval]))', '{{outcome}}'],
    ],
  ],
}

export const DASHBOARDS: Readonly<Record<string, Dashboard>> = {
  overview: OVERVIEW,
  model: MODEL,
  project: PROJECT,
  dependencies: DEPENDENCIES,
  workers: WORKERS,
}

// biome-ignore lint/suspicious/noTemplateCurlyInString: a variable of Grafana.
const DATASOURCE = { type: 'prometheus', uid: '${datasource}' }

/** The JSON of a dashboard, for the import or the provisioning of Grafana 10 and later. */
export function dashboardJson(name: string): string {
  const dashboard = DASHBOARDS[name]
  if (!dashboard) throw new Error(`no dashboard ${name}`)
  const { title, variable, panels } = dashboard
  const variables = [{ name: 'datasource', type: 'datasource', query: 'prometheus', label: 'Data source' }]
  const own = variable && {
    ...{ name: variable[0], type: 'query', label: variable[0], datasource: DATASOURCE, refresh: 2, sort: 1 },
    query: { query: `label_values(${variable[1]}, ${variable[0]})`, refId: variable[0] },
  }
  const json = {
    ...{
      uid: `sluice-${name}`,
      title,
      tags: ['sluice'],
      schemaVersion: 39,
      version: 1,
      editable: true,
      graphTooltip: 1,
    },
    ...{ refresh: '30s', time: { from: 'now-1h', to: 'now' }, timezone: 'browser', annotations: { list: [] } },
    links: [{ title: 'Sluice', type: 'dashboards', tags: ['sluice'], asDropdown: true, keepTime: true }],
    templating: { list: [...variables, ...(own ? [own] : [])] },
    panels: panels.map(panelJson),
  }
  return `${JSON.stringify(json, null, 2)}\n`
}

function panelJson([title, unit, ...queries]: Panel, index: number) {
  const x = (index * WIDTH) % COLUMNS
  const y = Math.floor((index * WIDTH) / COLUMNS) * HEIGHT
  return {
    ...{ id: index + 1, title, datasource: DATASOURCE, gridPos: { x, y, w: WIDTH, h: HEIGHT } },
    ...(unit === 'up' || unit === 'open' ? stateTimeline(unit) : timeSeries(unit)),
    targets: queries.map(([expr, legendFormat], i) => ({
      ...{ refId: String.fromCharCode(65 + i), expr, legendFormat, datasource: DATASOURCE },
    })),
  }
}

const LEGEND = { displayMode: 'list', placement: 'bottom' }

function timeSeries(unit: Unit) {
  const isEvent = unit === 'event'
  // An event is a single point, which a line would not show.
  const custom = isEvent
    ? { drawStyle: 'bars', fillOpacity: 80 }
    : { lineWidth: 1, fillOpacity: 10, showPoints: 'auto' }
  return {
    type: 'timeseries',
    fieldConfig: { defaults: { unit: isEvent ? 'short' : unit, min: 0, custom }, overrides: [] },
    options: { legend: LEGEND, tooltip: { mode: 'multi', sort: 'desc' } },
  }
}

/** One bar per series. Lines would cover each other, because most series have the same value. */
function stateTimeline(unit: 'up' | 'open') {
  const [zero, one] = unit === 'up' ? ['no', 'yes'] : ['closed', 'open']
  const [red, green] = [{ color: 'red' }, { color: 'green' }]
  const [of0, of1] = unit === 'up' ? [red, green] : [green, red]
  return {
    type: 'state-timeline',
    fieldConfig: {
      defaults: {
        color: { mode: 'fixed', fixedColor: 'gray' },
        mappings: [{ type: 'value', options: { 0: { text: zero, ...of0 }, 1: { text: one, ...of1 } } }],
      },
      overrides: [],
    },
    options: { showValue: 'never', mergeValues: true, legend: LEGEND, tooltip: { mode: 'single' } },
  }
}
