import { usePoll } from '#services/console/api/poll.ts'
import { canCall, isOperator } from '#services/console/api/session.ts'
import { Icon } from '#services/console/parts/icon.tsx'
import { TryIt } from '#services/console/parts/try-it.tsx'
import { BASE } from '#services/console/router.ts'
import { PlotChoice, PoolCard } from './pool-card.tsx'
import { problems } from './problems.ts'
import { hasMetrics, models, pools, preparations, refresh } from './state.ts'

const REFRESH_INTERVAL_MS = 2_000

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
      <div class="title">
        <h2>Pools</h2>
        <PlotChoice />
      </div>
      {!hasMetrics.value && (
        <p class="dim">Metrics are served on METRICS_PORT, so only operators see pool statistics here.</p>
      )}
      <div class="grid">
        {pools.value.map((pool) => (
          <PoolCard key={pool.id} pool={pool} />
        ))}
      </div>
      <Models />
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
    // Models that still load are listed below.
    if (preparations.value.length > 0) return null
    return (
      <p class="note good">
        <Icon name="check" /> All systems operational.
      </p>
    )
  }
  return (
    <ul class="attention" aria-label="Problems">
      {all.map(({ message, fix, isError }) => (
        <li key={message} class={isError ? 'note bad' : 'note warn'}>
          <Icon name="warn" />
          <div>
            <strong>{message}</strong>
            <p>
              <Fix text={fix} />
            </p>
          </div>
        </li>
      ))}
    </ul>
  )
}

function Fix({ text }: { readonly text: string }) {
  return <>{partsOf(text).map((part, nth) => (nth % 2 === 1 ? <code key={nth}>{part}</code> : part))}</>
}

/** Splits a remedy into text and commands, alternating. A command is quoted in backticks, or follows the last colon. */
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
