import { isOperator } from '#services/console/api/session.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { ago } from '#services/console/parts/time.ts'
import { BASE } from '#services/console/place.ts'
import { type ModelState, setPaused } from './state.ts'

interface CardProps {
  readonly model: ModelState
  readonly isPoolPaused: boolean
}

/** One model: what it can do, how it is, and what can be done about it. */
export function ModelCard({ model, isPoolPaused }: CardProps) {
  const { id, aliases, capabilities, prepared, pause } = model
  return (
    <li class="card model">
      <div class="title">
        <h3>{id}</h3>
        <State model={model} isPoolPaused={isPoolPaused} />
      </div>
      {aliases.length > 0 && <p class="dim">also {aliases.join(', ')}</p>}
      {capabilities.length > 0 && (
        <p class="tags">
          {capabilities.map((one) => (
            <span key={one}>{one.replaceAll('_', ' ')}</span>
          ))}
        </p>
      )}
      {prepared !== undefined && prepared < 1 && (
        <progress value={prepared} max={1} aria-label={`${id} is being prepared`} />
      )}
      <Facts model={model} />
      {pause && (
        <p class="dim">
          Paused {ago(pause.since)} by <code>{pause.by_key}</code>
          {!pause.kept && ', until the processes that heard of it end'}.
        </p>
      )}
      <div class="actions">
        {capabilities.includes('chat') && (
          <a
            class="button small"
            href={`${BASE}/playground?model=${encodeURIComponent(id)}`}
            aria-label={`Try it: ${id} in the playground`}
          >
            Try it
          </a>
        )}
        {isOperator.value && <PauseModel id={id} isPaused={pause !== undefined} />}
      </div>
    </li>
  )
}

function State({ model, isPoolPaused }: CardProps) {
  const { prepared, pause, served } = model
  if (pause || isPoolPaused) return <span class="status paused">{pause ? 'paused' : 'its pool is paused'}</span>
  if (served?.workers === 0) return <span class="status no-worker">no worker</span>
  if (prepared === undefined) return null
  if (prepared < 1) return <span class="status loading">loading, {Math.floor(prepared * 100)} %</span>
  return <span class="status prepared">prepared</span>
}

function Facts({ model: { waiting, contextTokens, served } }: { readonly model: ModelState }) {
  const facts: [string, string][] = []
  if (waiting !== undefined) facts.push(['waiting', waiting.toLocaleString()])
  if (contextTokens !== undefined) facts.push(['context', contextTokens.toLocaleString()])
  if (served) {
    facts.push(['workers', String(served.workers)])
    facts.push(['share of slots', `${served.share} / ${served.slots}`])
  }
  for (const { server, limit } of served?.limits ?? []) {
    const name = (served?.limits.length ?? 0) > 1 ? `limit found, server ${server + 1}` : 'limit found'
    facts.push([name, `${limit} at once`])
  }
  return (
    <dl>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

function PauseModel({ id, isPaused }: { readonly id: string; readonly isPaused: boolean }) {
  return (
    <Confirm verb={isPaused ? 'Resume' : 'Pause'} what={id} deed={() => setPaused('model', id, !isPaused)}>
      {isPaused ? (
        <p>Its jobs are started again, those that wait first.</p>
      ) : (
        <p>
          Nothing more of it is started in the whole fleet: its jobs stay queued, and new calls get 503. What runs ends
          normally. As the fallback of another model it is still tried.
        </p>
      )}
    </Confirm>
  )
}
