import { Plot } from '#services/console/parts/plot.tsx'
import { durationText, latencyText } from '#services/console/parts/time.ts'
import { BASE, queryParam, setQuery } from '#services/console/router.ts'
import type { ModelStats, PoolSample, PoolState } from './pools.ts'

const MODELS_MAX = 6
const jobs = (count: number) => (count === 1 ? '1 job' : `${count.toLocaleString()} jobs`)

/**
 * Metrics that the plots can show, by their name in the URL. In each plot, the first line has the colour of running work, the second that
 * of queued work.
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
  // The URL may contain any name, including those of Object.prototype.
  return (Object.hasOwn(all, name) ? all[name] : undefined) ?? PLOTS.jobs
}

export function PlotChoice() {
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

export function PoolCard({ pool }: { readonly pool: PoolState }) {
  const { id, slots, running, waiting, samples, ended, failed, isRecent, workers, latency } = pool
  const measured = latency.isOfRuns ? 'run' : 'first output'
  const title = latency.isOfRuns ? 'Duration of full runs' : 'Time from the request to its first output'
  const state = pool.isPaused ? 'paused' : slots === 0 ? 'no worker' : running > 0 ? 'active' : 'idle'
  const { name, lines, textOf, topMin } = plottedMetric()
  const markOf = (line: keyof PoolSample) => ['running', 'waiting'][lines.indexOf(line)]
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/* Without queued work a missing worker can be intended, so the card shows no error. Home lists actual problems above. */}
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
        <Figure name="running" value={`${running} / ${slots}`} mark={markOf('running')} />
        <Figure name="queued" value={waiting.toLocaleString()} mark={markOf('waiting')} />
        <Figure
          name="oldest wait"
          value={pool.oldestSeconds === undefined ? '–' : durationText(pool.oldestSeconds)}
          mark={markOf('oldestSeconds')}
        />
        <Figure name={`${measured} p50`} title={title} value={latencyText(latency.p50)} mark={markOf('p50')} />
        <Figure name={`${measured} p95`} title={title} value={latencyText(latency.p95)} mark={markOf('p95')} />
        <Figure
          name="failed"
          title={
            isRecent ? 'In the last 5 minutes' : 'Since this process started; nothing finished while this page was open'
          }
          value={ended === 0 ? '–' : `${failed} of ${ended}`}
          isBad={failed > 0 && isRecent}
          mark={markOf('failed')}
        />
      </dl>
      {pool.models.length > 0 && <ByModel pool={pool} title={title} />}
      {workers !== undefined && <p class="dim workers">{workers === 1 ? '1 worker' : `${workers} workers`}</p>}
    </article>
  )
}

interface FigureProps {
  readonly name: string
  readonly value: string
  readonly title?: string
  /** Colour of the line in the plot that shows this value; undefined: the value is not plotted. */
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
            <th scope="col" title={title}>
              p50
            </th>
            <th scope="col" title={title}>
              p95
            </th>
            <th scope="col">failed</th>
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
        {loadProgress !== undefined && <LoadState progress={loadProgress} />}
      </th>
      <td>{waiting.toLocaleString()}</td>
      <td>{latencyText(latency.p50)}</td>
      <td>{latencyText(latency.p95)}</td>
      <td class={failed > 0 && isRecent ? 'bad' : undefined}>{ended === 0 ? '–' : `${failed} of ${ended}`}</td>
    </tr>
  )
}

function LoadState({ progress }: { readonly progress: number }) {
  if (progress >= 1) return <span class="status ready">ready</span>
  return <span class="status loading">loading {Math.floor(progress * 100)} %</span>
}
