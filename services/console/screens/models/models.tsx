import { useSignal } from '@preact/signals'
import { isOperator } from '#services/console/api/client.ts'
import { ageText } from '#services/console/api/clock.ts'
import { FIRST_OUTPUT_TEXT } from '#services/console/api/metrics.ts'
import { keyName } from '#services/console/api/names.ts'
import {
  isUnavailable,
  percentilesText,
  RECENT_INTERVAL_MS,
  type Recent,
  recent,
  refreshRecent,
} from '#services/console/api/recent.ts'
import { Count, TryIt, usePoll } from '#services/console/parts/parts.tsx'
import { Empty, LoadState, Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { Incident } from '#services/console/screens/home/problems.tsx'
import { PauseButton } from '#services/console/screens/pools.tsx'
import { cachedStats } from './capacity.ts'
import { isLoaded, type ModelState, models, problem, refresh } from './state.ts'

const REFRESH_INTERVAL_MS = 2_000
const [FIRST_OUTPUT, DURATION] = ['First output p50 / p95', 'Duration p50 / p95']
const FIGURES = [FIRST_OUTPUT, DURATION, 'Queue share', 'Requests', 'Failed']
/** The column with the queued work of all projects, for operators only. */
const QUEUED = 'Queued'
const NUMBERS = ['Context', ...FIGURES, QUEUED]
const OPERATOR_COLUMNS = ['Model', 'Status', ...NUMBERS, '']
const COLUMNS = OPERATOR_COLUMNS.filter((name) => name !== QUEUED)

export function Models() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const ids = models.value.map(({ id }) => id)
  usePoll(RECENT_INTERVAL_MS, (abort) => refreshRecent(ids, abort), [ids.join(' '), isOperator.value])
  return (
    <section>
      <div class="title">
        <h1>Models</h1>
        {isLoaded.value && <p class="dim">{ids.length === 1 ? '1 model' : `${ids.length} models`}</p>}
      </div>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {ids.length > 0 && (
        <>
          <p class="dim">
            Requests and failures of the last hour{isOperator.value === false && ', of this project'}. Percentiles and
            the share of the queue in the duration: of the newest completed requests, at most 100 per model. First
            output: {FIRST_OUTPUT_TEXT}
          </p>
          <div class="models">
            <Table
              label="Models"
              columns={isOperator.value ? OPERATOR_COLUMNS : COLUMNS}
              numbers={NUMBERS}
              optional={['Context']}
              card={{ end: 'Status', hidden: ['Context', FIRST_OUTPUT] }}
            >
              {models.value.map((model) => (
                <Row key={model.id} model={model} />
              ))}
            </Table>
          </div>
        </>
      )}
      {isLoaded.value && ids.length === 0 && (
        <Empty title="No models">
          Models that this key may call appear here. An operator can change the permissions of the key.
        </Empty>
      )}
    </section>
  )
}

interface ModelProps {
  readonly model: ModelState
}

/** The row of a model, and a second row with its details. The details of a failing model are open at first. */
function Row({ model }: ModelProps) {
  const { id, pool, capabilities, loadProgress, contextTokens, waiting, pause, finding } = model
  const chosen = useSignal<boolean | undefined>(undefined)
  const isOpen = chosen.value ?? finding?.status === 'fail'
  return (
    <>
      <tr class="model">
        <Cell column="Model">
          <button
            type="button"
            class="name"
            aria-expanded={isOpen}
            onClick={() => {
              chosen.value = !isOpen
            }}
          >
            <span aria-hidden="true">{isOpen ? '▾' : '▸'}</span> {id}
          </button>
          <span class="dim below">{pool}</span>
        </Cell>
        <Cell column="Status">
          <State model={model} />
          {loadProgress !== undefined && loadProgress < 1 && (
            <progress value={loadProgress} max={1} aria-label={`Loading ${id}`} />
          )}
        </Cell>
        <Cell column="Context">{contextTokens?.toLocaleString('en') ?? '–'}</Cell>
        <Figures id={id} figures={recent.value?.byModel.get(id)} />
        {isOperator.value && <Cell column="Queued">{waiting?.toLocaleString('en') ?? '–'}</Cell>}
        <Cell>
          <span class="actions">
            <TryIt model={id} capabilities={capabilities} class="button small" />
            {isOperator.value && (
              <PauseButton
                target="model"
                id={id}
                isPaused={pause !== undefined}
                refresh={() => refresh(new AbortController().signal)}
              />
            )}
          </span>
        </Cell>
      </tr>
      {isOpen && <Details model={model} />}
    </>
  )
}

/** Cells with the figures of the last hour, placeholders until they are loaded, or dashes without a request log. */
function Figures({ id, figures }: { readonly id: string; readonly figures: Recent | undefined }) {
  if (recent.value === undefined && !isUnavailable.value) {
    return (
      <>
        {FIGURES.map((name) => (
          <Cell key={name} column={name}>
            <span class="bone" role="img" aria-label="Loading" />
          </Cell>
        ))}
      </>
    )
  }
  const { requests, hasMore, failed, firstOutput, duration, queueShare } = figures ?? {}
  const query = { model: id, since: recent.value?.since ?? '' }
  return (
    <>
      <Cell column={FIRST_OUTPUT}>{percentilesText(firstOutput)}</Cell>
      <Cell column={DURATION}>{percentilesText(duration)}</Cell>
      <Cell column="Queue share">{queueShare === undefined ? '–' : `${Math.round(queueShare * 100)} %`}</Cell>
      <Cell column="Requests">
        {requests === undefined ? (
          '–'
        ) : (
          <Count value={requests} path={`requests?${new URLSearchParams(query)}`} hasMore={hasMore} />
        )}
      </Cell>
      <Cell column="Failed">
        {failed === undefined ? (
          '–'
        ) : (
          <Count value={failed} path={`requests?${new URLSearchParams({ ...query, status: 'failed' })}`} isFailures />
        )}
      </Cell>
    </>
  )
}

function State({ model: { loadProgress, pause, poolPause, capacity, finding } }: ModelProps) {
  if (pause ?? poolPause) return <Status status="paused" text={pause ? undefined : 'pool paused'} />
  if (capacity?.workers === 0) return <Status status="no worker" />
  if (finding?.status === 'fail') return <Status status="failed" text="failing" />
  if (finding?.status === 'warn') return <Status status="partial" text="some calls fail" />
  if (loadProgress === undefined) return <span class="dim">–</span>
  if (loadProgress < 1) return <Status status="loading" text={`loading ${Math.floor(loadProgress * 100)} %`} />
  return <Status status="ready" />
}

function Details({ model }: ModelProps) {
  const { id, pause, finding } = model
  return (
    <tr class="more">
      <td colSpan={OPERATOR_COLUMNS.length} aria-label={`Details of ${id}`}>
        {finding && (
          <div class={finding.status === 'fail' ? 'note bad' : 'note warn'}>
            <div class="alert">
              <Incident finding={finding} />
            </div>
          </div>
        )}
        {pause && (
          <p class="dim">
            Paused {ageText(pause.since)} by {keyName(pause.by_key)}
            {!pause.persistent && ' (not saved; ends when the fleet restarts)'}.
          </p>
        )}
        <dl>
          {statsOf(model).map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </td>
    </tr>
  )
}

function statsOf({ aliases, capabilities, capacity, prompts }: ModelState): readonly (readonly [string, string])[] {
  const limits = capacity?.limits ?? []
  return [
    ['Aliases', aliases.join(', ') || '–'],
    ['Capabilities', capabilities.map((one) => one.replaceAll('_', ' ')).join(', ') || '–'],
    ...(capacity
      ? ([
          ['Workers', String(capacity.workers)],
          ['Concurrency', `up to ${capacity.concurrency.toLocaleString('en')}`],
        ] as const)
      : []),
    ...limits.map(({ server, limit }): [string, string] => [
      limits.length > 1 ? `Adaptive limit, server ${server + 1}` : 'Adaptive limit',
      `${limit} concurrent`,
    ]),
    ...(prompts ? cachedStats(prompts) : []),
  ]
}
