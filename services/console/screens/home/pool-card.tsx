import { Plot } from '#services/console/parts/plot.tsx'
import { brief, lasted } from '#services/console/parts/time.ts'
import { asked, askFor, BASE } from '#services/console/place.ts'
import type { ModelShare, Moment, PoolState } from './pools.ts'

const MODELS_SHOWN = 6
const jobs = (count: number) => (count === 1 ? '1 job' : `${count.toLocaleString()} jobs`)

/** Metrics that the plots can show, by their name in the URL. The first line has the colour of running work, the second that of queued work. */
const PLOTS = {
  jobs: { name: 'Jobs', lines: ['running', 'waiting'], textOf: jobs, topMin: 1 },
  wait: { name: 'Oldest wait', lines: ['oldestSeconds'], textOf: brief, topMin: 1 },
  latency: { name: 'Latency (p50, p95)', lines: ['p50', 'p95'], textOf: brief, topMin: 0.001 },
  failures: { name: 'Failures', lines: ['failed'], textOf: String, topMin: 1 },
} as const satisfies Record<string, Plotted>

interface Plotted {
  readonly name: string
  readonly lines: readonly (keyof Moment)[]
  readonly textOf: (most: number) => string
  readonly topMin: number
}

function plotted(): Plotted {
  const all: Readonly<Record<string, Plotted>> = PLOTS
  const name = asked('plot')
  // The URL may contain any name, including those of Object.prototype.
  return (Object.hasOwn(all, name) ? all[name] : undefined) ?? PLOTS.jobs
}

/** Selects the metric that the plots of all pools show. */
export function PlotChoice() {
  const chosen = plotted()
  return (
    <fieldset class="chips" aria-label="Plotted metric">
      {Object.entries(PLOTS).map(([id, one]) => (
        <button
          key={id}
          type="button"
          class="chip"
          aria-pressed={one === chosen}
          onClick={() => askFor({ plot: id === 'jobs' ? '' : id })}
        >
          {one.name}
        </button>
      ))}
    </fieldset>
  )
}

export function PoolCard({ pool }: { readonly pool: PoolState }) {
  const { id, slots, running, waiting, moments, ended, failed, isRecent, workers, latency } = pool
  const of = latency.isOfRuns ? 'run' : 'first output'
  const title = latency.isOfRuns ? 'Duration of full runs' : 'Time from the request to its first output'
  const state = pool.isPaused ? 'paused' : slots === 0 ? 'no worker' : running > 0 ? 'active' : 'idle'
  const { name, lines, textOf, topMin } = plotted()
  const markOf = (line: keyof Moment) => ['running', 'waiting'][lines.indexOf(line)]
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/* Without queued work a missing worker can be intended, so it is no error here. Home lists real problems above. */}
        <span class={`status ${state === 'no worker' && waiting === 0 ? 'idle' : state.replace(' ', '-')}`}>
          {state}
        </span>
      </div>
      <div>
        <Plot
          label={`${id}, ${name}: ${running} of ${slots} slots in use, ${waiting} queued`}
          series={lines.map((line) => ({
            name: markOf(line) ?? '',
            values: moments.map((moment) => moment[line]),
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
          value={pool.oldestSeconds === undefined ? '–' : lasted(pool.oldestSeconds)}
          mark={markOf('oldestSeconds')}
        />
        <Figure name={`${of} p50`} title={title} value={brief(latency.p50)} mark={markOf('p50')} />
        <Figure name={`${of} p95`} title={title} value={brief(latency.p95)} mark={markOf('p95')} />
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
  /** Colour of the plotted line of this value; undefined: not plotted. */
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
  const more = models.length - MODELS_SHOWN
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
          {models.slice(0, MODELS_SHOWN).map((model) => (
            <OneModel key={model.id} model={model} />
          ))}
        </tbody>
      </table>
      {more > 0 && <a href={`${BASE}/models`}>{more === 1 ? '1 more model' : `${more} more models`}</a>}
    </div>
  )
}

function OneModel({
  model: { id, waiting, latency, ended, failed, isRecent, prepared },
}: {
  readonly model: ModelShare
}) {
  return (
    <tr>
      <th scope="row">
        {id}
        {prepared !== undefined && <Prepared share={prepared} />}
      </th>
      <td>{waiting.toLocaleString()}</td>
      <td>{brief(latency.p50)}</td>
      <td>{brief(latency.p95)}</td>
      <td class={failed > 0 && isRecent ? 'bad' : undefined}>{ended === 0 ? '–' : `${failed} of ${ended}`}</td>
    </tr>
  )
}

function Prepared({ share }: { readonly share: number }) {
  if (share >= 1) return <span class="status ready">ready</span>
  return <span class="status loading">loading {Math.floor(share * 100)} %</span>
}
