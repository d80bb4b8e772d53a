import { usePoll } from '#services/console/api/poll.ts'
import { isOperator } from '#services/console/api/session.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { ageText } from '#services/console/parts/time.ts'
import { ModelCard } from './card.tsx'
import { isLoaded, type PoolModels, pools, problem, refresh, setPaused } from './state.ts'

const REFRESH_INTERVAL_MS = 2_000

/** Models by pool. Operators also see workers and slots, and can pause a model or a pool. */
export function Models() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const count = pools.value.reduce((total, { models }) => total + models.length, 0)
  return (
    <section>
      <div class="title">
        <h1>Models</h1>
        <p class="dim">{isLoaded.value ? (count === 1 ? '1 model' : `${count} models`) : 'Loading…'}</p>
      </div>
      <ErrorText text={problem.value} />
      {pools.value.map((one) => (
        <Pool key={one.pool} {...one} />
      ))}
      {isLoaded.value && pools.value.length === 0 && (
        <p class="card">
          No models. Models that this key may call appear here; an operator can change its permissions.
        </p>
      )}
    </section>
  )
}

function Pool({ pool, pause, models }: PoolModels) {
  return (
    <>
      <div class="title pool-title">
        <h2>
          {pool}
          {models.length === 0 && <span class="dim none">no models</span>}
        </h2>
        {pause && <span class="status paused">paused {ageText(pause.since)}</span>}
        {isOperator.value && <PausePool pool={pool} isPaused={pause !== undefined} />}
      </div>
      {models.length > 0 && (
        <ul class="models">
          {models.map((model) => (
            <ModelCard key={model.id} model={model} isPoolPaused={pause !== undefined} />
          ))}
        </ul>
      )}
    </>
  )
}

function PausePool({ pool, isPaused }: { readonly pool: string; readonly isPaused: boolean }) {
  return (
    <Confirm
      verb={isPaused ? 'Resume' : 'Pause'}
      what={`pool ${pool}`}
      action={() => setPaused('pool', pool, !isPaused)}
    >
      {isPaused ? (
        <p>Queued jobs of this pool start again, before new ones.</p>
      ) : (
        <p>
          In the whole fleet, jobs of this pool stay queued and new calls get a 503. Running work finishes. You can
          resume it at any time.
        </p>
      )}
    </Confirm>
  )
}
