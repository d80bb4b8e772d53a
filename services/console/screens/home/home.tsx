import { computed, signal } from '@preact/signals'
import {
  ApiFailure,
  canCall,
  type Finding,
  fetchJson,
  isOperator,
  messageOf,
  type Page,
  type Pool,
} from '#services/console/api/client.ts'
import { ageText, clockText, dayText, latencyText, serviceNow } from '#services/console/api/clock.ts'
import { fetchMetrics, Metrics } from '#services/console/api/metrics.ts'
import { failedRequestsOf } from '#services/console/api/names.ts'
import { Icon, usePoll } from '#services/console/parts/parts.tsx'
import { Plot } from '#services/console/parts/plot.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { durationText } from '#shared/lib/duration.ts'
import { History } from './history.tsx'
import { type ModelStats, type PoolSample, type PoolState, stateOf } from './pools.ts'
import { isUnused, Summary, slotsText, UnusedPools } from './summary.tsx'

const REFRESH_INTERVAL_MS = 2_000
/** Maximum number of projects that an alert names. */
const NAMES_MAX = 3
const DAY_SECONDS = 86_400

export function Home() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  return (
    <section class="home">
      <div class="title">
        <h1>Home</h1>
        {canCall.value !== false && (
          <a class="button primary" href={`${BASE}/playground`}>
            <Icon name="play" /> Try a model
          </a>
        )}
      </div>
      <Problems />
      <LoadingModels />
      <Summary pools={pools.value} />
      <History />
      <div class="title">
        <h2>Pools</h2>
        <PlotChoice />
      </div>
      {!hasMetrics.value && (
        <p class="dim">Metrics are served on METRICS_PORT, so only operators see pool statistics here.</p>
      )}
      <div class="grid">
        {pools.value.map((pool, nth) => !isUnused(pool, nth) && <PoolCard key={pool.id} pool={pool} />)}
      </div>
      <UnusedPools pools={pools.value.filter(isUnused)} />
      {isOperator.value === false && (
        <p class="dim">
          This key shows its own project only. To see the whole fleet, create a key with the <code>admin</code> scope:{' '}
          <code>npx sluice keys create --scopes calls,admin</code>
        </p>
      )}
    </section>
  )
}

function Problems() {
  const all = problems.value
  if (all.length === 0) {
    // While models are loading, no text is shown here, because the page lists these models below. Before the first
    // checks have ended, their result is not known, so no text is shown either.
    if (preparations.value.length > 0 || findings.value === undefined) return null
    const queue = queueText()
    return queue ? (
      <p class="note">
        <Icon name="jobs" /> No problems found. <a href={`${BASE}/requests?status=active`}>{queue}</a>
      </p>
    ) : (
      <p class="note good">
        <Icon name="check" /> All systems operational.
      </p>
    )
  }
  return (
    <ul class="attention" aria-label="Problems">
      {all.map(({ title, facts, text, isError, requests }) => (
        <li key={`${title} ${facts}`} class={isError ? 'note bad' : 'note warn'}>
          <Icon name="warn" />
          <div>
            <p>
              <strong>{title}</strong>
              {facts && <span class="facts">{facts}</span>}
              {requests && <a href={`${BASE}/requests?${requests}`}>Show the failed requests</a>}
            </p>
            {text && (
              <p class={facts && requests ? 'explanation' : undefined}>
                <Fix text={text} />
              </p>
            )}
          </div>
        </li>
      ))}
    </ul>
  )
}

/** Queued work as a sentence, or an empty text. */
function queueText(): string {
  const busy = pools.value.filter(({ waiting }) => waiting > 0)
  const waiting = busy.reduce((sum, pool) => sum + pool.waiting, 0)
  if (waiting === 0) return ''
  const oldest = Math.max(0, ...busy.map(({ oldestSeconds = 0 }) => oldestSeconds))
  const names = busy.map(({ id }) => id).join(', ')
  const since = oldest >= 1 ? `; the oldest has waited ${durationText(oldest)}` : ''
  return `${jobs(waiting)} ${waiting === 1 ? 'waits' : 'wait'} for a free slot in ${names}${since}.`
}

function Fix({ text }: { readonly text: string }) {
  return <>{partsOf(text).map((part, nth) => (nth % 2 === 1 ? <code key={nth}>{part}</code> : part))}</>
}

/** Splits a remedy into parts that are alternately text and a command. A command is quoted in backticks, or follows the last colon. */
function partsOf(text: string): readonly string[] {
  const [, before, command] = /^([^`]*: )((?:npx|node) [^`]+)$/.exec(text) ?? []
  return command === undefined ? text.split('`') : [before ?? '', command]
}

function LoadingModels() {
  const all = preparations.value
  if (all.length === 0) return null
  return (
    <div class="card preparing">
      <h2>Loading</h2>
      {all.map(({ name, progress }) => (
        <label key={name}>
          <span>{name}</span>
          <progress value={progress} max={1} />
          <span class="dim">{Math.floor(progress * 100)} %</span>
        </label>
      ))}
    </div>
  )
}

interface Problem {
  readonly title: string
  /** Time since which the problem exists, and the affected projects. May be empty. */
  readonly facts: string
  /**
   * Cause and remedy. If there are facts and a link to the requests, then a narrow window hides this text, because the
   * linked page shows the errors.
   */
  readonly text: string
  /** Whether the problem makes calls fail, so that the page shows an error instead of a warning. */
  readonly isError: boolean
  /** Query of the screen Requests that selects the failed requests. */
  readonly requests?: string
}

/**
 * Current problems, errors first: the health checks of `sluice doctor`, and the problems that `/readyz` reports. A key
 * without the admin scope receives only the checks of its own project.
 */
const problems = computed<readonly Problem[]>(() => {
  if (refreshError.value) {
    const text = 'This page retries automatically. The data below may be out of date.'
    return [{ title: refreshError.value, facts: '', text, isError: true }]
  }
  const found = findings.value
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isCoveredByFleet(check))
    .map(problemOf)
  const notReady = readyProblems.value.map((title) => ({
    title,
    facts: '',
    text: 'New requests are rejected until this is resolved. Run `npx sluice doctor` for a full check with remedies.',
    isError: true,
  }))
  // If a health check fails, then the problems of /readyz are left out, because the health checks report the same
  // problems with remedies.
  const all = found?.some(({ isError }) => isError) ? found : [...notReady, ...(found ?? [])]
  return all.toSorted((a, b) => Number(b.isError) - Number(a.isError))
})

/** If the finding has no title, then the first clause of its message becomes the title. */
function problemOf(finding: Finding): Problem {
  const { message, cause, since, projects, status } = finding
  const [, clause = message, rest = ''] = /^(.{1,80}?)(?:: |\. )(.*)$/s.exec(message) ?? []
  const remedy = finding.remediation ?? ''
  const names =
    projects.length > NAMES_MAX
      ? `${projects.slice(0, NAMES_MAX).join(', ')} and ${projects.length - NAMES_MAX} more`
      : projects.join(', ')
  return {
    title: finding.title ?? clause.replace(/\.$/, ''),
    facts: [
      since !== null && `Since ${sinceText(since)} (${ageText(since)})`,
      isOperator.value && names && `${projects.length === 1 ? 'Project' : 'Projects'}: ${names}`,
    ]
      .filter(Boolean)
      .join('. '),
    text: capitalized(`${cause ?? (finding.title ? message : rest)} ${remedy}`.trim()),
    isError: status === 'fail',
    requests: failedRequestsOf(finding),
  }
}

/** Returns the time of day if the time is less than 24 hours ago, and otherwise the date in UTC. */
function sinceText(seconds: number): string {
  const isToday = serviceNow() - seconds < DAY_SECONDS
  return isToday ? clockText(seconds) : dayText(new Date(seconds * 1_000).toISOString().slice(0, 10))
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}

/**
 * Maps a check of this machine to the check of the fleet that reports the same outage. If both fail, then only the fleet check is shown, because it
 * also states the consequence.
 */
const FLEET_CHECKS: Readonly<Record<string, string>> = { postgres: 'store', kafka: 'broker' }

function isCoveredByFleet(check: string): boolean {
  return findings.value?.some((one) => one.status === 'fail' && one.check === FLEET_CHECKS[check]) ?? false
}

interface Preparation {
  readonly name: string
  readonly progress: number
}

const pools = signal<readonly PoolState[]>([])
const preparations = signal<readonly Preparation[]>([])
const readyProblems = signal<readonly string[]>([])

const findings = signal<readonly Finding[] | undefined>(undefined)

/** Error text of the last refresh, or an empty string. The previous data stays on the page. */
const refreshError = signal('')

/** Whether this port serves the metrics. False if they are served on METRICS_PORT only. */
const hasMetrics = signal(true)

async function refresh(abort: AbortSignal): Promise<void> {
  void fetchFindings(abort)
  try {
    const [metrics, ready, adminPools] = await Promise.all([
      fetchMetrics(abort),
      // A 503 is no error here, because its body lists the problems.
      fetchJson<Ready>('/readyz', { signal: abort, expects: [503] }),
      isOperator.value ? fetchPools(abort) : undefined,
    ])
    readyProblems.value = ready.problems ?? []
    preparations.value = preparationsOf(ready)
    hasMetrics.value = metrics !== undefined
    refreshError.value = ''
    show(metrics ?? new Metrics(''), adminPools?.data)
  } catch (error) {
    if (!abort.aborted) refreshError.value = messageOf(error)
  }
}

interface Ready {
  readonly problems?: readonly string[]
  readonly preparing?: readonly string[]
}

/** Parses entries such as `all-minilm-l6-v2 (40 %)` of /readyz. The metrics have the progress too, but may be on another port. */
function preparationsOf({ preparing = [] }: Ready): readonly Preparation[] {
  return preparing.map((sentence) => {
    const [, name = sentence, percent = '0'] = /^(.*) \((\d+) %\)$/.exec(sentence) ?? []
    return { name, progress: Number(percent) / 100 }
  })
}

/** Reads the pools. Undefined if the store, which counts queued jobs, is unreachable. The page then shows the metrics instead. */
async function fetchPools(abort: AbortSignal): Promise<Page<Pool> | undefined> {
  return await fetchJson<Page<Pool>>('/v1/admin/pools', { signal: abort }).catch((error: unknown) => {
    if (error instanceof ApiFailure && error.status === 503) return undefined
    throw error
  })
}

let isFetchingFindings = false

/**
 * Reads the findings of the health checks, at most once at a time. The refresh does not wait for them,
 * because a check of an unreachable database takes seconds.
 */
async function fetchFindings(abort: AbortSignal): Promise<void> {
  if (isFetchingFindings) return
  isFetchingFindings = true
  try {
    findings.value = (await fetchJson<Page<Finding>>('/v1/admin/findings', { signal: abort })).data
  } catch {
    // The error is ignored, because the refresh already reports an unreachable service.
  }
  isFetchingFindings = false
}

function show(metrics: Metrics, adminPools: readonly Pool[] | undefined): void {
  const ids = adminPools?.map(({ id }) => id) ?? metrics.all('sluice_pool_slots').map(({ labels }) => labels.pool ?? '')
  pools.value = ids.map((id) =>
    stateOf(
      id,
      metrics,
      adminPools?.find((pool) => pool.id === id),
    ),
  )
}

const MODELS_MAX = 6
const jobs = (count: number) => (count === 1 ? '1 job' : `${count.toLocaleString('en')} jobs`)

/**
 * Metrics that the plots can show, by their name in the URL. The first line of a plot has the colour of running work, and the second line
 * has the colour of queued work.
 */
const PLOTS = {
  jobs: { name: 'Jobs', lines: ['running', 'waiting'], textOf: jobs, topMin: 1 },
  wait: { name: 'Oldest wait', lines: ['oldestSeconds'], textOf: latencyText, topMin: 1 },
  latency: { name: 'Latency (p50, p95)', lines: ['p50', 'p95'], textOf: latencyText, topMin: 0.001 },
  failures: { name: 'Failures', lines: ['failed'], textOf: String, topMin: 1 },
} as const satisfies Record<string, PlottedMetric>

interface PlottedMetric {
  readonly name: string
  readonly lines: readonly (keyof PoolSample)[]
  readonly textOf: (most: number) => string
  readonly topMin: number
}

function plottedMetric(): PlottedMetric {
  const all: Readonly<Record<string, PlottedMetric>> = PLOTS
  const name = queryParam('plot')
  // The URL may contain any name, including `constructor` and other names of Object.prototype, so only own properties are read.
  return (Object.hasOwn(all, name) ? all[name] : undefined) ?? PLOTS.jobs
}

function PlotChoice() {
  const chosen = plottedMetric()
  return (
    <fieldset class="chips" aria-label="Plotted metric">
      {Object.entries(PLOTS).map(([id, one]) => (
        <button
          key={id}
          type="button"
          class="chip"
          aria-pressed={one === chosen}
          onClick={() => setQuery({ plot: id === 'jobs' ? '' : id })}
        >
          {one.name}
        </button>
      ))}
    </fieldset>
  )
}

function PoolCard({ pool }: { readonly pool: PoolState }) {
  const { id, slots, running, waiting, samples, ended, failed, isRecent, workers, latency } = pool
  const measured = latency.isOfRuns ? 'run' : 'first output'
  const title = latency.isOfRuns ? 'Duration of full runs' : 'Time from the request to its first output'
  // A paused model can be listed as full although none of its calls run. Only models that are really at their limit are shown.
  const fullModels = pool.fullModels.filter((model) => running >= model.limit)
  const state = pool.isPaused ? 'paused' : slots === 0 ? 'no worker' : running > 0 ? 'active' : 'idle'
  const { name, lines, textOf, topMin } = plottedMetric()
  const markOf = (line: keyof PoolSample) => ['running', 'waiting'][lines.indexOf(line)]
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/*
         * A pool without workers and without queued work may be intended, so its card shows no error. If the missing
         * worker is a real problem, then the list of problems above shows it.
         */}
        <span class={`status ${state === 'no worker' && waiting === 0 ? 'idle' : state.replace(' ', '-')}`}>
          {state}
        </span>
      </div>
      <div>
        <Plot
          label={`${id}, ${name}: ${running} of ${slots} slots in use, ${waiting} queued`}
          series={lines.map((line) => ({
            name: markOf(line) ?? '',
            values: samples.map((sample) => sample[line]),
          }))}
          {...{ textOf, topMin }}
        />
        <p class="dim span">
          <span>5 min ago</span>
          <span>now</span>
        </p>
      </div>
      <dl>
        <Figure name="slots" value={slotsText(running, slots)} mark={markOf('running')} />
        <Figure name="queued" value={waiting.toLocaleString('en')} mark={markOf('waiting')} />
        <Figure
          name="oldest wait"
          value={pool.oldestSeconds === undefined ? '–' : durationText(pool.oldestSeconds)}
          mark={markOf('oldestSeconds')}
        />
        <Figure name={`${measured} p50`} title={title} value={latencyText(latency.p50)} mark={markOf('p50')} />
        <Figure name={`${measured} p95`} title={title} value={latencyText(latency.p95)} mark={markOf('p95')} />
        <Figure
          name="failed attempts"
          title={`Failed attempts and all attempts. A request may have several attempts. ${
            isRecent ? 'In the last 5 minutes' : 'Since this process started; nothing finished while this page was open'
          }`}
          value={ended === 0 ? '–' : `${failed} of ${ended}`}
          isBad={failed > 0 && isRecent}
          mark={markOf('failed')}
        />
      </dl>
      {fullModels.map(({ id: model, limit }) => (
        <p key={model} class="dim">
          {model}: {limit} of {limit} slots running,{' '}
          {(pool.models.find(({ id }) => id === model)?.waiting ?? waiting).toLocaleString('en')} waiting
        </p>
      ))}
      {pool.models.length > 0 && <ByModel pool={pool} title={title} />}
      {workers !== undefined && <p class="dim workers">{workers === 1 ? '1 worker' : `${workers} workers`}</p>}
    </article>
  )
}

interface FigureProps {
  readonly name: string
  readonly value: string
  readonly title?: string
  /** CSS class of the plot line that shows this value, so that both have one colour. Undefined if the value is not plotted. */
  readonly mark?: string | undefined
  readonly isBad?: boolean
}

function Figure({ name, value, title, mark, isBad = false }: FigureProps) {
  return (
    <div title={title}>
      <dt>
        {mark && <span class={`mark ${mark}`} />}
        {name}
      </dt>
      <dd class={isBad ? 'bad' : undefined}>{value}</dd>
    </div>
  )
}

function ByModel({ pool: { id, models }, title }: { readonly pool: PoolState; readonly title: string }) {
  const more = models.length - MODELS_MAX
  return (
    <div class="by-model">
      <table aria-label={`Models of ${id}`}>
        <thead>
          <tr>
            <th scope="col">model</th>
            <th scope="col">queued</th>
            <th scope="col" class="p50" title={title}>
              p50
            </th>
            <th scope="col" title={title}>
              p95
            </th>
            <th scope="col" title="Attempts, of which a request may have several">
              failed
            </th>
          </tr>
        </thead>
        <tbody>
          {models.slice(0, MODELS_MAX).map((model) => (
            <ModelRow key={model.id} model={model} />
          ))}
        </tbody>
      </table>
      {more > 0 && <a href={`${BASE}/models`}>{more === 1 ? '1 more model' : `${more} more models`}</a>}
    </div>
  )
}

function ModelRow({
  model: { id, waiting, latency, ended, failed, isRecent, loadProgress },
}: {
  readonly model: ModelStats
}) {
  return (
    <tr>
      <th scope="row">
        {id}
        <LoadState model={id} progress={loadProgress} />
      </th>
      <td>{waiting.toLocaleString('en')}</td>
      <td class="p50">{latencyText(latency.p50)}</td>
      <td>{latencyText(latency.p95)}</td>
      <td class={failed > 0 && isRecent ? 'bad' : undefined}>{ended === 0 ? '–' : `${failed} of ${ended}`}</td>
    </tr>
  )
}

function LoadState({ model, progress }: { readonly model: string; readonly progress: number | undefined }) {
  const isFailing = findings.value?.some((finding) => finding.model === model && finding.status === 'fail')
  if (isFailing) return <span class="status failed">failing</span>
  if (progress === undefined) return null
  if (progress >= 1) return <span class="status ready">ready</span>
  return <span class="status loading">loading {Math.floor(progress * 100)} %</span>
}
