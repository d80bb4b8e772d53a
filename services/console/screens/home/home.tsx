import { usePoll } from '#services/console/api/poll.ts'
import { isOperator, mayCall } from '#services/console/api/session.ts'
import { Icon } from '#services/console/parts/icon.tsx'
import { Plot } from '#services/console/parts/plot.tsx'
import { brief, lasted } from '#services/console/parts/time.ts'
import { TryIt } from '#services/console/parts/try-it.tsx'
import { BASE } from '#services/console/place.ts'
import { advice } from './advice.ts'
import { hasFigures, look, models, type PoolState, pools, preparations } from './state.ts'

const LOOK_MS = 2_000

/** How the service is: what needs attention, what still loads, and each pool as it works. */
export function Home() {
  usePoll(LOOK_MS, look, [isOperator.value])
  return (
    <section class="home">
      <div class="title">
        <h1>Home</h1>
        {mayCall.value !== false && (
          <a class="button primary" href={`${BASE}/playground`}>
            <Icon name="play" /> Try a model
          </a>
        )}
      </div>
      <Attention />
      <Preparing />
      <h2>Pools</h2>
      {!hasFigures.value && (
        <p class="dim">The figures of this process are at METRICS_PORT, so only operators see how the pools work.</p>
      )}
      <div class="grid">
        {pools.value.map((pool) => (
          <PoolCard key={pool.id} pool={pool} />
        ))}
      </div>
      <Models />
      {isOperator.value === false && (
        <p class="dim">
          This key sees its own project. One with the scope <code>admin</code> sees the whole fleet:{' '}
          <code>npx sluice keys create --scopes calls,admin</code>
        </p>
      )}
    </section>
  )
}

function Attention() {
  const all = advice.value
  if (all.length === 0) {
    return (
      <p class="note good">
        <Icon name="check" /> Everything works.
      </p>
    )
  }
  return (
    <ul class="attention" aria-label="What needs attention">
      {all.map(({ what, todo, isBad }) => (
        <li key={what} class={isBad ? 'note bad' : 'note warn'}>
          <Icon name="warn" />
          <div>
            <strong>{what}</strong>
            <p>{todo}</p>
          </div>
        </li>
      ))}
    </ul>
  )
}

function Preparing() {
  const all = preparations.value
  if (all.length === 0) return null
  return (
    <div class="card preparing">
      <h2>Being prepared</h2>
      {all.map(({ what, share }) => (
        <label key={what}>
          <span>{what}</span>
          <progress value={share} max={1} />
          <span class="dim">{Math.floor(share * 100)} %</span>
        </label>
      ))}
    </div>
  )
}

function PoolCard({ pool }: { readonly pool: PoolState }) {
  const { id, slots, running, waiting, moments, ended, failed, workers, latency } = pool
  const of = latency.isOfRuns ? 'run' : 'output'
  const title = latency.isOfRuns ? 'Of whole runs' : 'From the call to its first output'
  const state = pool.isPaused ? 'paused' : slots === 0 ? 'no worker' : running > 0 ? 'working' : 'idle'
  return (
    <article class="card pool">
      <div class="title">
        <h3>{id}</h3>
        {/* Where nothing waits for it a pool without workers may be as it should be: what is wrong stands above. */}
        <span class={`status ${state === 'no worker' && waiting === 0 ? 'idle' : state.replace(' ', '-')}`}>
          {state}
        </span>
      </div>
      <Plot
        label={`${id}: ${running} of ${slots} run, ${waiting} wait`}
        series={[
          { name: 'running', values: moments.map((moment) => moment.running) },
          { name: 'waiting', values: moments.map((moment) => moment.waiting) },
        ]}
      />
      <dl>
        <Figure name="running" value={`${running} / ${slots}`} mark="running" />
        <Figure name="waiting" value={waiting.toLocaleString()} mark="waiting" />
        <Figure name="oldest wait" value={pool.oldestSeconds === undefined ? '–' : lasted(pool.oldestSeconds)} />
        <Figure name={`${of} p50`} title={title} value={brief(latency.p50)} />
        <Figure name={`${of} p95`} title={title} value={brief(latency.p95)} />
        <Figure name="failed" value={ended === 0 ? '–' : `${failed} of ${ended}`} isBad={failed > 0} />
      </dl>
      {workers !== undefined && <p class="dim workers">{workers === 1 ? '1 worker' : `${workers} workers`}</p>}
    </article>
  )
}

interface FigureProps {
  readonly name: string
  readonly value: string
  readonly title?: string
  readonly mark?: string
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

function Models() {
  if (models.value.length === 0) return null
  return (
    <>
      <h2>Models</h2>
      <ul class="models">
        {models.value.map(({ id, owned_by, capabilities }) => (
          <li key={id} class="card">
            <div>
              <strong>{id}</strong>
              <span class="dim"> {owned_by}</span>
            </div>
            <p class="tags">
              {capabilities.map((one) => (
                <span key={one}>{one.replace('_', ' ')}</span>
              ))}
            </p>
            <TryIt model={id} capabilities={capabilities} />
          </li>
        ))}
      </ul>
    </>
  )
}
