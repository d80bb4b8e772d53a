import { fetchJson, isOperator, type Page, type Worker } from '#services/console/api/client.ts'
import { ageText } from '#services/console/api/clock.ts'
import { Confirm, usePoll } from '#services/console/parts/parts.tsx'
import { Empty, LoadState, OperatorsOnly, polled, Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'

const {
  data: workers,
  isLoaded,
  problem,
  refresh,
} = polled<readonly Worker[]>([], async (signal) => {
  return (await fetchJson<Page<Worker>>('/v1/admin/workers', { signal })).data
})

const REFRESH_INTERVAL_MS = 2_000
const COLUMNS = ['Worker', 'Status', 'Pool', 'Running', 'Models', 'Version', '']

export function Workers() {
  return (
    <section>
      <div class="title">
        <h1>Workers</h1>
        {isLoaded.value && <p class="dim">{countOf(workers.value)}</p>}
      </div>
      <OperatorsOnly>
        <Fleet />
      </OperatorsOnly>
    </section>
  )
}

function Fleet() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  return (
    <>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && workers.value.length === 0 && (
        <Empty title="No workers">
          Calls wait until a worker starts. Check that the worker processes run and reach the queue.
        </Empty>
      )}
      {workers.value.length > 0 && (
        <Table
          label="Workers"
          columns={COLUMNS}
          main={['Worker', 'Models']}
          card={{ end: 'Status', hidden: ['Version'] }}
        >
          {workers.value.map((worker) => (
            <Row key={worker.id} worker={worker} />
          ))}
        </Table>
      )}
    </>
  )
}

function Row({ worker }: { readonly worker: Worker }) {
  const {
    id,
    role,
    host,
    pid,
    version,
    slots,
    capacity,
    running,
    parked_calls: parkedCalls,
    models,
    suspected,
    last_seen_at,
  } = worker
  return (
    <tr>
      <Cell column="Worker">
        <code>{id}</code>
        {host && <span class="dim below wide-only">{pid === null ? host : `${host}, pid ${pid}`}</span>}
      </Cell>
      <Cell column="Status">
        <Status status={statusOf(worker)} />
        {suspected && <span class="dim below">last heartbeat {ageText(last_seen_at)}</span>}
      </Cell>
      <Cell column="Pool">{role}</Cell>
      <Cell column="Running">
        {slots > 0 ? <Load running={running} capacity={capacity} parkedCalls={parkedCalls ?? 0} /> : '–'}
      </Cell>
      <Cell column="Models">{models?.length ? models.join(', ') : '–'}</Cell>
      <Cell column="Version">{version ? <code>{version}</code> : '–'}</Cell>
      <Cell>{slots > 0 && <Drain worker={worker} />}</Cell>
    </tr>
  )
}

/** @param capacity Jobs that the models of the worker can run concurrently, usually fewer than its slots */
function Load({
  running,
  capacity,
  parkedCalls,
}: Pick<Worker, 'running' | 'capacity'> & { readonly parkedCalls: number }) {
  return (
    <>
      <span>
        {running} of {capacity}
      </span>
      {parkedCalls > 0 && <span class="dim below">{parkedCalls} waiting for a model</span>}
      <progress value={running} max={capacity} aria-label={`${running} of up to ${capacity} jobs running`} />
    </>
  )
}

function Drain({ worker }: { readonly worker: Worker }) {
  const { role, running, draining } = worker
  return (
    <Confirm
      verb={draining ? 'Undrain' : 'Drain'}
      what={`${role} worker`}
      keep={draining ? 'Keep drained' : 'Keep in service'}
      done={`Worker ${draining ? 'undrained' : 'drained'}.`}
      action={() => setDrained(worker, !draining)}
    >
      <WorkerName worker={worker} />
      {draining ? (
        <p>The worker accepts jobs again.</p>
      ) : (
        <p>
          The worker accepts no new jobs{running > 0 && `, and finishes the ${running} in flight`}. It stays drained
          until you undrain or stop it.
        </p>
      )}
      {!draining && isOnlyActive(worker) && (
        <p class="note warn">
          No other worker of the pool {role} accepts jobs. Its jobs stay queued until one is available.
        </p>
      )}
    </Confirm>
  )
}

function WorkerName({ worker: { id, host } }: { readonly worker: Worker }) {
  return (
    <p class="dim">
      <code>{id}</code>
      {host && ` on ${host}`}
    </p>
  )
}

function countOf(all: readonly Worker[]): string {
  const taking = all.filter(({ slots }) => slots > 0)
  const capacity = taking.reduce((total, worker) => total + worker.capacity, 0)
  const running = taking.reduce((total, worker) => total + worker.running, 0)
  return `${taking.length} ${taking.length === 1 ? 'worker' : 'workers'}, ${running} of up to ${capacity} jobs running`
}

async function setDrained({ id }: Worker, isDrained: boolean): Promise<void> {
  await fetchJson(`/v1/admin/workers/${encodeURIComponent(id)}/${isDrained ? 'drain' : 'undrain'}`, { method: 'POST' })
  await refresh()
}

function statusOf({ slots, suspected, draining, running }: Worker): string {
  if (suspected) return 'unresponsive'
  // The ingress and the scheduler have no slots, so their only status besides `unresponsive` is `alive`.
  if (slots === 0) return 'alive'
  if (draining) return running > 0 ? 'draining' : 'drained'
  return running > 0 ? 'active' : 'idle'
}

function isOnlyActive({ id, role }: Worker): boolean {
  return !workers.value.some((other) => other.role === role && other.id !== id && !other.draining && !other.suspected)
}
