import { isOperator } from '#services/console/api/client.ts'
import { ageText, latencyText } from '#services/console/api/clock.ts'
import { Confirm, TryIt, usePoll } from '#services/console/parts/parts.tsx'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { cachedStats } from './capacity.ts'
import { isLoaded, type ModelState, type PoolModels, pools, problem, refresh, setPaused } from './state.ts'

const REFRESH_INTERVAL_MS = 2_000

export function Models() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const count = pools.value.reduce((total, { models }) => total + models.length, 0)
  return (
    <section>
      <div class="title">
        <h1>Models</h1>
        {isLoaded.value && <p class="dim">{count === 1 ? '1 model' : `${count} models`}</p>}
      </div>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {pools.value.map((one) => (
        <Pool key={one.pool} {...one} />
      ))}
      {isLoaded.value && pools.value.length === 0 && (
        <Empty title="No models">
          Models that this key may call appear here. An operator can change the permissions of the key.
        </Empty>
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

interface CardProps {
  readonly model: ModelState
  readonly isPoolPaused: boolean
}

function ModelCard({ model, isPoolPaused }: CardProps) {
  const { id, aliases, capabilities, loadProgress, pause, finding } = model
  return (
    <li class="card model">
      <div class="title">
        <h3>{id}</h3>
        <State model={model} isPoolPaused={isPoolPaused} />
      </div>
      {aliases.length > 0 && <p class="dim">Aliases: {aliases.join(', ')}</p>}
      {capabilities.length > 0 && (
        <p class="tags">
          {capabilities.map((one) => (
            <span key={one}>{one.replaceAll('_', ' ')}</span>
          ))}
        </p>
      )}
      {loadProgress !== undefined && loadProgress < 1 && (
        <progress value={loadProgress} max={1} aria-label={`Loading ${id}`} />
      )}
      <Stats model={model} />
      <Latencies model={model} />
      {finding && (
        <p class={finding.status === 'fail' ? 'note bad' : 'note warn'}>
          {finding.message} {finding.remediation}
        </p>
      )}
      {pause && (
        <p class="dim">
          Paused {ageText(pause.since)} by <code>{pause.by_key}</code>
          {!pause.persistent && ' (not saved; ends when the fleet restarts)'}.
        </p>
      )}
      <div class="actions">
        <TryIt model={id} capabilities={capabilities} class="button small" />
        {isOperator.value && <PauseModel id={id} isPaused={pause !== undefined} />}
      </div>
    </li>
  )
}

function State({ model, isPoolPaused }: CardProps) {
  const { loadProgress, pause, capacity, finding } = model
  if (pause || isPoolPaused) return <span class="status paused">{pause ? 'paused' : 'pool paused'}</span>
  if (capacity?.workers === 0) return <span class="status no-worker">no worker</span>
  if (finding?.status === 'fail') return <span class="status failed">failing</span>
  if (loadProgress === undefined) return null
  if (loadProgress < 1) return <span class="status loading">loading {Math.floor(loadProgress * 100)} %</span>
  return <span class="status ready">ready</span>
}

function Stats({ model }: { readonly model: ModelState }) {
  const { waiting, contextTokens, capacity, prompts } = model
  const stats: [string, string][] = []
  if (waiting !== undefined) stats.push(['queued', waiting.toLocaleString()])
  if (contextTokens !== undefined) stats.push(['context', `${contextTokens.toLocaleString()} tokens`])
  if (capacity) {
    stats.push(['workers', String(capacity.workers)])
    stats.push(['concurrency', `up to ${capacity.concurrency.toLocaleString()}`])
  }
  for (const { server, limit } of capacity?.limits ?? []) {
    const name = (capacity?.limits.length ?? 0) > 1 ? `adaptive limit, server ${server + 1}` : 'adaptive limit'
    stats.push([name, `${limit} concurrent`])
  }
  if (prompts) stats.push(...cachedStats(prompts))
  return (
    <dl>
      {stats.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

function Latencies({ model: { id, firstOutput, run } }: { readonly model: ModelState }) {
  const rows = [['first output', firstOutput] as const, ['full run', run] as const]
  const known = rows.filter(([, latency]) => latency?.p50 !== undefined)
  if (known.length === 0) return null
  return (
    <table class="latency" aria-label={`Latency of ${id}`}>
      <thead>
        <tr>
          <th scope="col">latency</th>
          <th scope="col">p50</th>
          <th scope="col">p95</th>
        </tr>
      </thead>
      <tbody>
        {known.map(([name, latency]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{latencyText(latency?.p50)}</td>
            <td>{latencyText(latency?.p95)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function PauseModel({ id, isPaused }: { readonly id: string; readonly isPaused: boolean }) {
  return (
    <Confirm verb={isPaused ? 'Resume' : 'Pause'} what={id} action={() => setPaused('model', id, !isPaused)}>
      {isPaused ? (
        <p>Queued jobs of this model start again, before new ones.</p>
      ) : (
        <p>
          In the whole fleet, jobs of this model stay queued and new calls get a 503. Running work finishes. The model
          still serves as a fallback of other models. You can resume it at any time.
        </p>
      )}
    </Confirm>
  )
}
