import { isOperator } from '#services/console/api/session.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { ago, brief } from '#services/console/parts/time.ts'
import { TryIt } from '#services/console/parts/try-it.tsx'
import { type ModelState, setPaused } from './state.ts'

interface CardProps {
  readonly model: ModelState
  readonly isPoolPaused: boolean
}

export function ModelCard({ model, isPoolPaused }: CardProps) {
  const { id, aliases, capabilities, prepared, pause, served } = model
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
      {prepared !== undefined && prepared < 1 && <progress value={prepared} max={1} aria-label={`Loading ${id}`} />}
      <Facts model={model} />
      <Latencies model={model} />
      {served !== undefined && served.failing > 0 && (
        <p class="note bad">
          {served.failing === served.workers
            ? 'Circuit breaker open'
            : `Circuit breaker open on ${served.failing} of ${served.workers} workers`}
          : the upstream servers kept failing, so calls are rejected. After a delay one trial call is sent; if it
          succeeds, the breaker closes.
        </p>
      )}
      {pause && (
        <p class="dim">
          Paused {ago(pause.since)} by <code>{pause.by_key}</code>
          {!pause.kept && ' (not saved; ends when the fleet restarts)'}.
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
  const { prepared, pause, served } = model
  if (pause || isPoolPaused) return <span class="status paused">{pause ? 'paused' : 'pool paused'}</span>
  if (served?.workers === 0) return <span class="status no-worker">no worker</span>
  if (served && served.failing > 0) return <span class="status failed">failing</span>
  if (prepared === undefined) return null
  if (prepared < 1) return <span class="status loading">loading {Math.floor(prepared * 100)} %</span>
  return <span class="status ready">ready</span>
}

function Facts({ model }: { readonly model: ModelState }) {
  const { waiting, contextTokens, served } = model
  const facts: [string, string][] = []
  if (waiting !== undefined) facts.push(['queued', waiting.toLocaleString()])
  if (contextTokens !== undefined) facts.push(['context', `${contextTokens.toLocaleString()} tokens`])
  if (served) {
    facts.push(['workers', String(served.workers)])
    facts.push(['slots', `${served.share} / ${served.slots}`])
  }
  for (const { server, limit } of served?.limits ?? []) {
    const name = (served?.limits.length ?? 0) > 1 ? `adaptive limit, server ${server + 1}` : 'adaptive limit'
    facts.push([name, `${limit} concurrent`])
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
            <td>{brief(latency?.p50)}</td>
            <td>{brief(latency?.p95)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function PauseModel({ id, isPaused }: { readonly id: string; readonly isPaused: boolean }) {
  return (
    <Confirm verb={isPaused ? 'Resume' : 'Pause'} what={id} deed={() => setPaused('model', id, !isPaused)}>
      {isPaused ? (
        <p>Queued jobs of this model start again, oldest first.</p>
      ) : (
        <p>
          In the whole fleet, jobs of this model stay queued and new calls get a 503. Running work finishes. The model
          still serves as a fallback of other models. You can resume it at any time.
        </p>
      )}
    </Confirm>
  )
}
