import { signal, useSignal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import { type DeadLetter, fetchJson, messageOf, type Page, type Pool } from '#services/console/api/client.ts'
import {
  Confirm,
  Dialog,
  ErrorText,
  Icon,
  LoadMore,
  ShortId,
  useAction,
  usePoll,
} from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState, OperatorsOnly, Status } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'

const REFRESH_INTERVAL_MS = 5_000
const COLUMNS = ['Reason', 'Pool', 'Job', 'Kind', 'Size', 'Created', '']
const REASONS: Readonly<Record<string, string>> = {
  not_understood: 'unreadable',
  understood_here: 'version mismatch',
}

/** Records that no worker could process, with the reason. Durable jobs among them can be requeued. */
export function DeadLetters() {
  return (
    <section>
      <OperatorsOnly>
        <Letters />
      </OperatorsOnly>
    </section>
  )
}

function Letters() {
  const pool = queryParam('pool')
  const list = useMemo(() => new DeadLetterList(pool), [pool])
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { letters, isLoaded, problem } = list
  return (
    <>
      <div class="title">
        <h1>Dead letters</h1>
        <Redrive key={pool} list={list} />
      </div>
      <p class="dim">
        Records that no worker could process. The service deletes them after 14 days, whether requeued or not.
        Requeueing a record twice is safe: its job runs once.
      </p>
      <PoolFilter pool={pool} />
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && <LetterTable list={list} letters={letters.value} />}
    </>
  )
}

function PoolFilter({ pool }: { readonly pool: string }) {
  const pools = useSignal<readonly string[]>([])
  useEffect(() => {
    fetchJson<Page<Pool>>('/v1/admin/pools').then(
      ({ data }) => {
        pools.value = data.map(({ id }) => id)
      },
      // An error is ignored, because the page works without the filter and then shows all pools.
      () => {},
    )
  }, [pools])
  return (
    <div class="filters">
      <select aria-label="Pool" value={pool} onChange={({ currentTarget }) => setQuery({ pool: currentTarget.value })}>
        <option value="">All pools</option>
        {[...new Set([...pools.value, ...(pool ? [pool] : [])])].map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </div>
  )
}

function LetterTable({ list, letters }: { readonly list: DeadLetterList; readonly letters: readonly DeadLetter[] }) {
  return (
    <>
      {letters.length > 0 ? (
        <Table
          label="Dead letters"
          columns={COLUMNS}
          numbers={['Size', 'Created']}
          card={{ end: 'Created', hidden: ['Size'] }}
        >
          {letters.map((letter) => (
            <Row key={letter.id} list={list} letter={letter} />
          ))}
        </Table>
      ) : (
        <Empty title={list.hasMore.value ? 'No dead letters among the newest 10,000 records' : 'No dead letters'}>
          Records that no worker can process appear here.
        </Empty>
      )}
      <LoadMore list={list} />
    </>
  )
}

function Row({ list, letter }: { readonly list: DeadLetterList; readonly letter: DeadLetter }) {
  const { id, reason, message, pool, position, job_id, kind, model, project, bytes, redrivable, created_at } = letter
  return (
    <tr>
      <Cell column="Reason">
        <Status status={redrivable ? 'queued' : 'failed'} text={REASONS[reason] ?? reason.replaceAll('_', ' ')} />
        <span class="dim below">{message}</span>
        {redrivable && <span class="below">Can be requeued.</span>}
      </Cell>
      <Cell column="Pool">
        {pool ?? '–'}
        {typeof position === 'string' && <code class="dim below">{position}</code>}
      </Cell>
      <Cell column="Job">{job_id ? <JobName id={job_id} isDurable={redrivable} /> : '–'}</Cell>
      <Cell column="Kind">
        {kind ?? '–'}
        {model && <span class="below">{model}</span>}
        {project && <span class="dim below">project {project}</span>}
      </Cell>
      <Cell column="Size">{bytes.toLocaleString('en')} B</Cell>
      <Cell column="Created">
        <Age at={created_at} />
      </Cell>
      <Cell>
        <div class="actions">
          {redrivable && (
            <Confirm
              verb="Requeue"
              what="this dead letter"
              id={id}
              keep="Keep here"
              done="Dead letter requeued."
              action={() => list.requeue(id)}
            >
              <p>The job returns to its queue. A job that has already finished does not change.</p>
            </Confirm>
          )}
          <Confirm
            isDestructive
            verb="Discard"
            what="this dead letter"
            id={id}
            keep="Keep the record"
            done="Dead letter discarded."
            action={() => list.discard(id)}
          >
            <p>
              The record leaves this list and can no longer be requeued. A durable job expires at its deadline. This
              can’t be undone.
            </p>
          </Confirm>
        </div>
      </Cell>
    </tr>
  )
}

/** Shows the id of a job, as a link if the job is durable. Other jobs have no page. */
function JobName({ id, isDurable }: { readonly id: string; readonly isDurable: boolean }) {
  return <ShortId id={id} {...(isDurable && { href: `${BASE}/jobs/${id}` })} />
}

/** Maximum and default number of dead letters per request, as in schemas/admin/admin.ts. */
const LIMIT = { max: 1_000, default: 100 }
const PREVIEW_MAX = 8

function Redrive({ list }: { readonly list: DeadLetterList }) {
  const isOpen = useSignal(false)
  return (
    <>
      <button
        type="button"
        class="primary"
        disabled={list.letters.value.length === 0}
        onClick={() => {
          isOpen.value = true
        }}
      >
        <Icon name="again" /> Requeue all
      </button>
      {isOpen.value && (
        <Dialog
          title={list.pool ? `Requeue dead letters of ${list.pool}` : 'Requeue dead letters'}
          onClose={() => {
            isOpen.value = false
          }}
        >
          {(close) => <Steps list={list} close={close} />}
        </Dialog>
      )}
    </>
  )
}

function Steps({ list, close }: { readonly list: DeadLetterList; readonly close: () => void }) {
  const max = useSignal(LIMIT.default)
  const dry = useSignal<RequeueResult | undefined>(undefined)
  const done = useSignal<RequeueResult | undefined>(undefined)
  /** Cursor after the last record of the previous preview, so that the next preview continues with older records. */
  const after = useSignal<string | null>(null)
  const { isBusy, problem, run } = useAction()
  const preview = () =>
    run(async () => {
      dry.value = await list.redrive(max.value, true, after.value)
    })
  const requeue = () =>
    run(async () => {
      done.value = await list.redrive(max.value, false, after.value)
    })
  const continueOlder = () => {
    after.value = (done.value ?? dry.value)?.last_id ?? null
    done.value = undefined
    dry.value = undefined
    void preview()
  }
  const count = dry.value?.data.length ?? 0
  const canContinue = done.value?.has_more || (dry.value?.has_more && count === 0)
  return (
    <>
      <p>
        Requeues durable jobs that this version can read, newest first. A preview shows them before anything changes.
      </p>
      <label class="cap">
        <span>Maximum</span>
        <input
          type="number"
          min={1}
          max={LIMIT.max}
          value={max.value}
          disabled={done.value !== undefined}
          onInput={({ currentTarget }) => {
            max.value = Math.min(LIMIT.max, Math.max(1, Math.floor(currentTarget.valueAsNumber || 1)))
            // The preview was computed for another maximum, so the old preview is discarded.
            dry.value = undefined
          }}
        />
      </label>
      <div aria-live="polite">
        {done.value ? (
          <p class="note good">{summaryOf(done.value, 'requeued.')}</p>
        ) : (
          dry.value && <Preview result={dry.value} />
        )}
      </div>
      <ErrorText text={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          {done.value ? 'Done' : 'Cancel'}
        </button>
        {canContinue && (
          <button type="button" class="primary" disabled={isBusy.value} onClick={continueOlder}>
            Preview older ones
          </button>
        )}
        {!done.value && !canContinue && (
          <button
            type="button"
            class="primary"
            disabled={isBusy.value || (dry.value !== undefined && count === 0)}
            onClick={() => void (dry.value ? requeue() : preview())}
          >
            {dry.value && count > 0 ? `Requeue ${count}` : 'Preview'}
          </button>
        )}
      </div>
    </>
  )
}

function Preview({ result }: { readonly result: RequeueResult }) {
  const { data } = result
  if (data.length === 0) return <p class="note">No dead letters here can be requeued.</p>
  return (
    <div class="note found">
      <p>{summaryOf(result, 'to be requeued:')}</p>
      <ul>
        {data.slice(0, PREVIEW_MAX).map(({ id, job_id, pool }) => (
          <li key={id}>
            <code>{job_id}</code> <span class="dim">{pool}</span>
          </li>
        ))}
      </ul>
      {data.length > PREVIEW_MAX && <p class="dim">and {data.length - PREVIEW_MAX} more</p>}
    </div>
  )
}

function summaryOf({ data, has_more }: RequeueResult, text: string): string {
  return `${data.length} ${text}${has_more ? ' There may be more.' : ''}`
}

const PAGE_SIZE = 50
const LETTERS_MAX = 2_000

interface RequeueResult {
  readonly data: readonly DeadLetter[]
  readonly last_id: string | null
  readonly has_more: boolean
}

class DeadLetterList {
  readonly letters = signal<readonly DeadLetter[]>([])
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly pool: string
  /** Ids of the dead letters that were discarded on this page. The response to an older request can still contain them, so they are filtered out. */
  readonly #discarded = new Set<string>()
  #last: string | null = null

  constructor(pool: string) {
    this.pool = pool
  }

  async refresh(abort: AbortSignal): Promise<void> {
    try {
      const page = await this.#page({}, abort)
      // If more new records arrived than fit into a page, then some records are missing between this page and the loaded pages. The list then starts
      // again from this page.
      const isGap = page.has_more && !page.data.some(({ id }) => this.letters.value.some((known) => known.id === id))
      if (!this.isLoaded.value || isGap) this.#restart(page)
      else this.#merge(page.data)
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort.aborted) this.problem.value = messageOf(error)
    }
  }

  async more(): Promise<void> {
    const page = await this.#page({ after: this.#last ?? '' })
    this.#setCursor(page)
    this.#merge(page.data)
  }

  async requeue(id: string): Promise<void> {
    await fetchJson(`/v1/admin/dead-letters/${id}/redrive`, { method: 'POST' })
  }

  async discard(id: string): Promise<void> {
    await fetchJson(`/v1/admin/dead-letters/${id}`, { method: 'DELETE' })
    this.#discarded.add(id)
    this.letters.value = this.letters.value.filter((letter) => letter.id !== id)
  }

  /** Requeues several dead letters. @param after `last_id` of the previous result, to continue with older dead letters @throws ApiFailure */
  async redrive(max: number, isDry: boolean, after: string | null = null): Promise<RequeueResult> {
    const body = { max, dry_run: isDry, ...(this.pool && { pool: this.pool }), ...(after !== null && { after }) }
    return await fetchJson('/v1/admin/dead-letters/redrive', { method: 'POST', body })
  }

  #restart(page: Page<DeadLetter>): void {
    this.letters.value = page.data
    this.#setCursor(page)
  }

  #setCursor({ last_id, has_more }: Page<DeadLetter>): void {
    this.#last = last_id
    this.hasMore.value = has_more && this.letters.value.length < LETTERS_MAX
  }

  #merge(letters: readonly DeadLetter[]): void {
    const all = [...this.letters.value, ...letters].filter(({ id }) => !this.#discarded.has(id))
    const known = new Map(all.map((letter) => [letter.id, letter]))
    this.letters.value = [...known.values()].toSorted((a, b) => Number(b.id) - Number(a.id))
  }

  async #page(more: Readonly<Record<string, string>>, signal?: AbortSignal): Promise<Page<DeadLetter>> {
    const query = new URLSearchParams({ limit: String(PAGE_SIZE), ...more, ...(this.pool && { pool: this.pool }) })
    return await fetchJson(`/v1/admin/dead-letters?${query}`, signal ? { signal } : {})
  }
}
