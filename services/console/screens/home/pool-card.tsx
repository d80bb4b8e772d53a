import { Plot } from '#services/console/parts/plot.tsx'
import { brief, lasted } from '#services/console/parts/time.ts'
import { asked, askFor, BASE } from '#services/console/place.ts'
import type { ModelShare, Moment, PoolState } from './pools.ts'

/** Models that a card names: the others are on their own screen. */
const MODELS_SHOWN = 6
const jobs = (count: number) => (count === 1 ? '1 job' : `${count.toLocaleString()} jobs`)

/** What the plots can show, by its name in the address. The first of two lines has the colour of what runs. */
const PLOTS = {
  jobs: { name: 'Jobs', lines: ['running', 'waiting'], textOf: jobs, topMin: 1 },
  wait: { name: 'Oldest wait', lines: ['oldestSeconds'], textOf: brief, topMin: 1 },
  latency: { name: 'p50 and p95', lines: ['p50', 'p95'], textOf: brief, topMin: 0.001 },
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
  // An address may say anything, also what every object has.
  return (Object.hasOwn(all, name) ? all[name] : undefined) ?? PLOTS.jobs
}

/** Which figure the plots of all pools show. */
export function PlotChoice() {
  const chosen = plotted()
  return (
    <fieldset class="chips" aria-label="What the plots show">
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

/** A pool as it works: its plot, its figures, and its models. */
export function PoolCard({ pool }: { readonly pool: PoolState }) {
  const { id, slots, running, waiting, moments, ended, failed, isRecent, workers, latency } = pool
  const of = latency.isOfRuns ? 'run' : 'output'
  const title = latency.isOfRuns ? 'Of whole runs' : 'From the call to its first output'
  const state = pool.isPaused ? 'paused' : slots === 0 ? 'no worker' : running > 0 ? 'working' : 'idle'
  const { name, lines, textOf, topMin } = plotted()
  const markOf = (line: keyof Moment) => ['running', 'waiting'][lines.indexOf(line)]
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/* Where nothing waits for it a pool without workers may be as it should be: what is wrong stands above. */}
        <span class={`status ${state === 'no worker' && waiting === 0 ? 'idle' : state.replace(' ', '-')}`}>
          {state}
        </span>
      </div>
      <div>
        <Plot
          label={`${id}, ${name}: ${running} of ${slots} run, ${waiting} wait`}
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
        <Figure name="waiting" value={waiting.toLocaleString()} mark={markOf('waiting')} />
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
            isRecent ? 'In the last five minutes' : 'Since this process began: none has ended since this page looks'
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
  /** The line of the plot that draws it, by its colour; undefined: none does. */
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
            <th scope="col">waiting</th>
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
      {more > 0 && <a href={`${BASE}/models`}>{more === 1 ? '1 model more' : `${more} models more`}</a>}
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
  if (share >= 1) return <span class="status prepared">prepared</span>
  return <span class="status loading">loading, {Math.floor(share * 100)} %</span>
}
