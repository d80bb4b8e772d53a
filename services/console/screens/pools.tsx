import { fetchJson, isOperator, type Page, type Pause, type Pool } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { Confirm, Count, usePoll } from '#services/console/parts/parts.tsx'
import { LoadState, OperatorsOnly, polled, Status } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'
import { durationText } from '#shared/lib/duration.ts'
import { PARENTS_TEXT, poolStatus } from './home/pools.ts'

const REFRESH_INTERVAL_MS = 2_000
const NUMBERS = ['Running', 'Slots', 'Queued calls', 'Queued jobs', 'Oldest wait', 'Workers']
const COLUMNS = ['Pool', 'Status', ...NUMBERS, '']

interface View {
  readonly pools: readonly Pool[]
  readonly pauses: readonly Pause[]
}

const { data, isLoaded, problem, refresh } = polled<View>({ pools: [], pauses: [] }, async (signal) => {
  const [pools, pauses] = await Promise.all([
    fetchJson<Page<Pool>>('/v1/admin/pools', { signal }),
    fetchJson<Page<Pause>>('/v1/admin/pauses', { signal }),
  ])
  return { pools: pools.data, pauses: pauses.data }
})

export function Pools() {
  return (
    <section>
      <div class="title">
        <h1>Pools</h1>
        {isLoaded.value && <p class="dim">{data.value.pools.length} pools</p>}
      </div>
      <OperatorsOnly>
        <List />
      </OperatorsOnly>
    </section>
  )
}

function List() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  return (
    <>
      <p class="dim">
        A pool is a queue with the workers that serve it. While a pool is paused, its jobs stay queued and new calls get
        a 503.
      </p>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {data.value.pools.length > 0 && (
        <Table
          label="Pools"
          columns={COLUMNS}
          numbers={NUMBERS}
          card={{ end: 'Status', hidden: ['Slots', 'Oldest wait', 'Workers'] }}
        >
          {data.value.pools.map((pool) => (
            <Row key={pool.id} pool={pool} />
          ))}
        </Table>
      )}
    </>
  )
}

function Row({ pool }: { readonly pool: Pool }) {
  const { id, running, slots, calls, jobs, workers, draining, models, oldest_queued_at: oldest } = pool
  const pause = data.value.pauses.find(({ target, id: of }) => target === 'pool' && of === id)
  const parents = jobs?.waiting ?? 0
  const status = poolStatus({ isPaused: pause !== undefined, slots, running, parents })
  const full = models.filter((model) => model.full && model.running >= model.limit)
  return (
    <tr>
      <Cell column="Pool">
        <strong>{id}</strong>
        {full.length > 0 && <span class="dim below">At their limit: {full.map((model) => model.id).join(', ')}</span>}
        {parents > 0 && <span class="dim below">{PARENTS_TEXT}</span>}
      </Cell>
      <Cell column="Status">
        <Status status={status} />
        {pause && (
          <span class="dim below">
            <Age at={pause.since} />
          </span>
        )}
      </Cell>
      <Cell column="Running">{running.toLocaleString('en')}</Cell>
      <Cell column="Slots">{slots.toLocaleString('en')}</Cell>
      <Cell column="Queued calls">
        <Count value={calls.queued} path="requests?status=active" />
      </Cell>
      <Cell column="Queued jobs">
        {jobs ? <Count value={jobs.queued.normal + jobs.queued.low} path="jobs?status=queued" /> : '–'}
      </Cell>
      <Cell column="Oldest wait">{oldest === null ? '–' : durationText(Math.max(0, serviceNow() - oldest))}</Cell>
      <Cell column="Workers">
        <Count value={workers} path="workers" />
        {draining > 0 && <span class="dim below">{draining} draining</span>}
      </Cell>
      <Cell>
        <PauseButton target="pool" id={id} isPaused={pause !== undefined} refresh={() => refresh()} />
      </Cell>
    </tr>
  )
}

interface PauseButtonProps {
  readonly target: Pause['target']
  readonly id: string
  readonly isPaused: boolean
  /** Loads the list of the screen again. */
  readonly refresh: () => Promise<void>
}

/** Button that pauses or resumes a model or a pool in the whole fleet, after a confirmation. */
export function PauseButton({ target, id, isPaused, refresh }: PauseButtonProps) {
  const change = async () => {
    const path = `/v1/admin/${target}s/${encodeURIComponent(id)}/${isPaused ? 'resume' : 'pause'}`
    await fetchJson(path, { method: 'POST' })
    await refresh()
  }
  return (
    <Confirm
      verb={isPaused ? 'Resume' : 'Pause'}
      what={target === 'pool' ? `pool ${id}` : id}
      done={`${target === 'pool' ? `Pool ${id}` : id} ${isPaused ? 'resumed' : 'paused'}.`}
      keep={isPaused ? 'Keep paused' : 'Keep running'}
      action={change}
    >
      {isPaused ? (
        <p>Queued jobs of this {target} start again, before new ones.</p>
      ) : (
        <p>
          In the whole fleet, jobs of this {target} stay queued and new calls get a 503. Running work finishes.{' '}
          {target === 'model' && 'The model still serves as a fallback of other models. '}You can resume it at any time.
        </p>
      )}
    </Confirm>
  )
}
