import { signal } from '@preact/signals'
import type { z } from 'zod'
import type { ActiveRequestListAnswer } from '#schemas/admin/requests.ts'
import {
  ApiFailure,
  canCall,
  type Finding,
  fetchJson,
  isOperator,
  messageOf,
  ownKey,
  type Page,
  type Pool,
} from '#services/console/api/client.ts'
import { latencyText } from '#services/console/api/clock.ts'
import { FIRST_OUTPUT_TEXT, fetchMetrics, Metrics } from '#services/console/api/metrics.ts'
import { projectName } from '#services/console/api/names.ts'
import { percentilesText, RECENT_INTERVAL_MS, recent, refreshRecent } from '#services/console/api/recent.ts'
import { Icon, usePoll } from '#services/console/parts/parts.tsx'
import { Plot } from '#services/console/parts/plot.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { LoadState, Status } from '#services/console/parts/states.tsx'
import { durationText } from '#shared/lib/duration.ts'
import { History } from './history.tsx'
import { type ModelStats, PARENTS_TEXT, type PoolSample, type PoolState, poolStatus, stateOf } from './pools.ts'
import { Problems } from './problems.tsx'
import { isUnused, Summary, slotsText, UnusedPools, type Work } from './summary.tsx'

const REFRESH_INTERVAL_MS = 2_000
type ActivePage = z.infer<typeof ActiveRequestListAnswer>

export function Home() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  return (
    <section class="home">
      <div class="title">
        <h1>Home</h1>
        {isOperator.value === false && (
          <p class="dim">Figures of your project {ownKey.value && projectName(ownKey.value.project)}</p>
        )}
        {canCall.value !== false && (
          <a class="button primary" href={`${BASE}/playground`}>
            <Icon name="play" /> Try a model
          </a>
        )}
      </div>
      <Problems
        findings={findings.value}
        readyProblems={readyProblems.value}
        refreshError={refreshError.value}
        isPreparing={preparations.value.length > 0}
        queued={(isOperator.value ? pools.value : ownCalls.value && [ownCalls.value]) ?? []}
      />
      <LoadingModels />
      <Summary work={isOperator.value ? sumOf(pools.value) : ownCalls.value} />
      <History />
      {isOperator.value && <Pools />}
      {isOperator.value === false && (
        <p class="dim">
          This key shows its own project only. To see the whole fleet, ask the operator for a key with the{' '}
          <code>admin</code> scope.
        </p>
      )}
    </section>
  )
}

function sumOf(all: readonly PoolState[] | undefined): Work | undefined {
  if (!all) return undefined
  const sum = (count: (pool: PoolState) => number) => all.reduce((total, pool) => total + count(pool), 0)
  return {
    running: sum(({ running }) => running),
    waiting: sum(({ waiting }) => waiting),
    durable: { running: sum(({ durable }) => durable.running), waiting: sum(({ durable }) => durable.waiting) },
  }
}

function Pools() {
  const all = pools.value
  const ids = [...new Set(all?.flatMap(({ models }) => models.slice(0, MODELS_MAX).map(({ id }) => id)))].toSorted()
  usePoll(RECENT_INTERVAL_MS, (abort) => refreshRecent(ids, abort).catch(() => {}), [ids.join(' ')])
  if (!all) return <LoadState problem="" isLoaded={false} />
  return (
    <>
      <div class="title">
        <h2>Pools</h2>
        <PlotChoice />
      </div>
      <div class="grid">{all.map((pool, nth) => !isUnused(pool, nth) && <PoolCard key={pool.id} pool={pool} />)}</div>
      <UnusedPools pools={all.filter(isUnused)} />
    </>
  )
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

interface Preparation {
  readonly name: string
  readonly progress: number
}

/** Undefined until loaded. */
const pools = signal<readonly PoolState[] | undefined>(undefined)
/** Synchronous calls of the project of the key, read only if the key lacks the `admin` scope. Undefined until loaded. */
const ownCalls = signal<Work | undefined>(undefined)
const preparations = signal<readonly Preparation[]>([])
const readyProblems = signal<readonly string[]>([])

const findings = signal<readonly Finding[] | undefined>(undefined)

/** Error text of the last refresh, or an empty string. The previous data stays on the page. */
const refreshError = signal('')

async function refresh(abort: AbortSignal): Promise<void> {
  void fetchFindings(abort)
  try {
    const [ready] = await Promise.all([
      // A 503 is no error here, because its body lists the problems.
      fetchJson<Ready>('/readyz', { signal: abort, expects: [503] }),
      isOperator.value ? refreshPools(abort) : refreshOwnCalls(abort),
    ])
    readyProblems.value = ready.problems ?? []
    preparations.value = preparationsOf(ready)
    refreshError.value = ''
  } catch (error) {
    if (!abort.aborted) refreshError.value = messageOf(error)
  }
}

async function refreshPools(abort: AbortSignal): Promise<void> {
  const [metrics, adminPools] = await Promise.all([fetchMetrics(abort), fetchPools(abort)])
  show(metrics ?? new Metrics(''), adminPools?.data)
}

/** Counts the calls of the project of the key. The metrics have no counts per project. */
async function refreshOwnCalls(abort: AbortSignal): Promise<void> {
  if (isOperator.value === undefined) return
  const count = async (status: string) =>
    (await fetchJson<ActivePage>(`/v1/admin/requests/active?status=${status}`, { signal: abort })).total
  const [running, waiting] = await Promise.all([count('running'), count('waiting')])
  ownCalls.value = { running, waiting }
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
 * Reads the findings of the health checks. Only one read runs at a time. The refresh does not wait for the read, because a check of an
 * unreachable database takes seconds.
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
  jobs: { name: 'Jobs', lines: ['running', 'waiting'], textOf: jobs },
  wait: { name: 'Oldest wait', lines: ['oldestSeconds'], textOf: latencyText },
} as const satisfies Record<string, PlottedMetric>

interface PlottedMetric {
  readonly name: string
  readonly lines: readonly (keyof PoolSample)[]
  readonly textOf: (most: number) => string
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
  const { id, slots, running, waiting, parents, samples, workers } = pool
  // A paused model can be listed as full although none of its calls run. Only models that are really at their limit are shown.
  const fullModels = pool.fullModels.filter((model) => running >= model.limit)
  const state = poolStatus(pool)
  const { name, lines, textOf } = plottedMetric()
  const markOf = (line: keyof PoolSample) => ['running', 'waiting'][lines.indexOf(line)]
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/*
         * A pool without workers and without queued work may be intended, so its card shows no error. If the missing
         * worker is a real problem, then the list of problems above shows it.
         */}
        <Status status={state === 'no worker' && waiting === 0 ? 'idle' : state} text={state} />
      </div>
      <div>
        <Plot
          label={`${id}, ${name}: ${running} of ${slots} slots in use, ${waiting} queued`}
          series={lines.map((line) => ({
            mark: markOf(line) ?? '',
            values: samples.map((sample) => sample[line]),
          }))}
          textOf={textOf}
        />
        <p class="dim span">
          <span>5 min ago</span>
          <span>now</span>
        </p>
      </div>
      <dl>
        <Figure name="slots in use" value={slotsText(running, slots)} mark={markOf('running')} />
        <Figure name="queued" value={waiting.toLocaleString('en')} mark={markOf('waiting')} />
        <Figure
          name="oldest wait"
          value={pool.oldestSeconds === undefined ? '–' : durationText(pool.oldestSeconds)}
          mark={markOf('oldestSeconds')}
        />
      </dl>
      {parents > 0 && <p class="dim window">{PARENTS_TEXT}</p>}
      {fullModels.map(({ id: model, limit }) => (
        <p key={model} class="dim">
          {model}: {limit} of {limit} slots running,{' '}
          {(pool.models.find(({ id }) => id === model)?.waiting ?? waiting).toLocaleString('en')} queued
        </p>
      ))}
      {pool.models.length > 0 && <ByModel pool={pool} />}
      {workers !== undefined && <p class="dim workers">{workers === 1 ? '1 worker' : `${workers} workers`}</p>}
    </article>
  )
}

interface FigureProps {
  readonly name: string
  readonly value: string
  /** CSS class of the plot line that shows this value, so that both have one colour. Undefined if the value is not plotted. */
  readonly mark?: string | undefined
}

function Figure({ name, value, mark }: FigureProps) {
  return (
    <div>
      <dt>
        {mark && <span class={`mark ${mark}`} />}
        {name}
      </dt>
      <dd>{value}</dd>
    </div>
  )
}

function ByModel({ pool: { id, models } }: { readonly pool: PoolState }) {
  const more = models.length - MODELS_MAX
  return (
    <div class="by-model">
      <table aria-label={`Models of ${id}`}>
        <thead>
          <tr>
            <th scope="col">model</th>
            <th scope="col">queued</th>
            <th scope="col" class="p50" title={FIRST_OUTPUT_TEXT}>
              first output p50 / p95
            </th>
            <th scope="col" title="Failed requests and all requests">
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
      <p class="dim window">
        Latencies and failures of the last hour. <a href={`${BASE}/models`}>All figures by model</a>
      </p>
      {more > 0 && <a href={`${BASE}/models`}>{more === 1 ? '1 more model' : `${more} more models`}</a>}
    </div>
  )
}

function ModelRow({ model: { id, waiting, loadProgress } }: { readonly model: ModelStats }) {
  const { since = '', byModel } = recent.value ?? {}
  const figures = byModel?.get(id)
  const path = `requests?${new URLSearchParams({ model: id, since, status: 'failed' })}`
  const failed = figures
    ? `${figures.failed.toLocaleString('en')} of ${figures.requests.toLocaleString('en')}${figures.hasMore ? '+' : ''}`
    : '–'
  return (
    <tr>
      <th scope="row">
        {id}
        <ModelState model={id} progress={loadProgress} />
      </th>
      <td>{waiting.toLocaleString('en')}</td>
      <td class="p50">{percentilesText(figures?.firstOutput)}</td>
      <td>
        {figures && figures.failed > 0 ? (
          <a class="figure bad" href={`${BASE}/${path}`}>
            {failed}
          </a>
        ) : (
          failed
        )}
      </td>
    </tr>
  )
}

function ModelState({ model, progress }: { readonly model: string; readonly progress: number | undefined }) {
  const isFailing = findings.value?.some((finding) => finding.model === model && finding.status === 'fail')
  if (isFailing) return <Status status="failed" text="failing" />
  if (progress === undefined) return null
  if (progress >= 1) return <Status status="ready" />
  return <Status status="loading" text={`loading ${Math.floor(progress * 100)} %`} />
}
