import { useSignal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import type { RequestAnswer, RequestListAnswer } from '#schemas/admin/requests.ts'
import { isOperator, Pages } from '#services/console/api/client.ts'
import { costText, countText, dateTimeText, latencyText, serviceNow } from '#services/console/api/clock.ts'
import { keyName, namedKeys, namedProjects, projectName } from '#services/console/api/names.ts'
import { batchPath } from '#services/console/parts/details.tsx'
import { Chips, LoadMore, ShortId, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, navigate, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'
import { jobEndpoints, loadSuggestions, modelIds } from '#services/console/screens/jobs/list.ts'
import { logStartText } from '#shared/usage/comparison.ts'
import { ActiveRequests } from './active-requests.tsx'
import { useFailures } from './failures.tsx'
import { Outcome, PATH } from './request.tsx'

/** Value of the filter `status` for calls that have not ended. */
const ACTIVE = 'active'
/** Query that removes the times `since` and `until`, which a link from another screen may have set. A chosen range replaces these times. */
const NO_BOUNDS = { since: '', until: '' }
const REFRESH_INTERVAL_MS = 3_000
const NUMBERS = ['Tokens', 'Cost', 'First output', 'Duration', 'Ended']
const COLUMNS = ['Status', 'Request', 'Model', 'Endpoint', ...NUMBERS]
const OPERATOR_COLUMNS = COLUMNS.toSpliced(2, 0, 'Project')
const STATUSES = [
  { id: ACTIVE, name: 'Running and queued' },
  { id: '', name: 'All' },
  { id: '2xx', name: 'Completed' },
  { id: 'failed', name: 'Failed' },
  { id: '429', name: 'Rate limited' },
  { id: '5xx', name: 'Server errors' },
  { id: '499', name: 'Cancelled' },
] as const
/** Filters of the URL that are text fields, with their labels. */
const FIELDS = { model: 'Model', endpoint: 'Endpoint', server: 'Server', error_code: 'Error code' } as const
const RANGES = {
  '': 'Any time',
  '900': 'Last 15 minutes',
  '3600': 'Last hour',
  '86400': 'Last 24 hours',
  '604800': 'Last 7 days',
} as const
const BATCH_LINES = { '': 'Depends on the filters', true: 'Listed', false: 'Not listed' } as const
const DURATIONS = { '': 'Any duration', '1000': 'Over 1 s', '10000': 'Over 10 s', '60000': 'Over 1 min' } as const
/** Filters that apply only to ended calls. If the user chooses the status `active`, then {@link NO_FILTERS} clears them. */
const FILTERS = ['batch_id', 'batch_lines', 'min_duration_ms', 'project', 'key', ...Object.keys(FIELDS)]
const TIMES = ['range', 'since', 'until']
const NO_FILTERS = Object.fromEntries([...FILTERS, ...TIMES].map((name) => [name, '']))

export function Requests() {
  if (queryParam('status') !== ACTIVE) return <EndedRequests />
  return (
    <ActiveRequests>
      <div class="filters">
        <StatusChips />
      </div>
    </ActiveRequests>
  )
}

function EndedRequests() {
  const filters = Object.fromEntries(['status', ...FILTERS, 'until'].map((name) => [name, queryParam(name)]))
  const [range, start] = [queryParam('range'), queryParam('since')]
  const key = JSON.stringify([filters, range, start])
  const list = useMemo(() => {
    const since = Number(range) > 0 ? String(Math.floor(serviceNow() - Number(range))) : start
    return new Pages<RequestAnswer>(PATH, { ...filters, since, count: 'true' })
  }, [key])
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { items, isLoaded, problem } = list
  const isFiltered = range + start !== '' || Object.values(filters).some((value) => value !== '')
  return (
    <section class="requests ended">
      <div class="title">
        <h1>Requests</h1>
        {isLoaded.value && (
          <p class="dim" aria-live="polite">
            {countOf(list)}
          </p>
        )}
      </div>
      <p class="dim">
        Ended calls and durable jobs, newest first. A batch is one row with the sums of its calls; its page and the
        filter Failed list the calls instead.
      </p>
      <div class="filters">
        <Find />
        <Choice name="range" label="Time" choices={RANGES} clears={NO_BOUNDS} />
        <MoreFilters />
        <StatusChips />
      </div>
      <ActiveFilters />
      <LogStart list={list} since={start} />
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && items.value.length === 0 && (
        <NoRequests isFiltered={isFiltered} hasMore={list.hasMore.value} />
      )}
      {items.value.length > 0 && (
        <Table
          label="Requests"
          columns={isOperator.value ? OPERATOR_COLUMNS : COLUMNS}
          numbers={NUMBERS}
          main={['Request']}
          optional={['Endpoint', 'First output']}
          card={{ end: 'Ended', hidden: ['Endpoint', 'First output', 'Cost'] }}
        >
          {items.value.map((request) => (
            <Row key={`${request.id} ${request.ended_at}`} request={request} />
          ))}
        </Table>
      )}
      {isLoaded.value && <LoadMore list={list} />}
    </section>
  )
}

/** Number of requests that match, with a plus sign if more may match. */
function countOf({ items, hasMore, first }: Pages<RequestAnswer>): string {
  const { total, total_is_lower_bound } = (first.value ?? {}) as Partial<RequestListAnswer>
  const shown = items.value.length
  const [count, isMin] = total == null ? [shown, hasMore.value] : [Math.max(total, shown), total_is_lower_bound]
  return count === 1 && !isMin ? '1 request' : `${countText(count)}${isMin ? '+' : ''} requests`
}

/** States that the period of the list begins before the request log. */
function LogStart({ list, since }: { readonly list: Pages<RequestAnswer>; readonly since: string }) {
  const { log_since = null } = (list.first.value ?? {}) as Partial<RequestListAnswer>
  const text = since === '' ? '' : logStartText(log_since, Number(since))
  return text ? <p class="dim">{text}</p> : null
}

/** Form that opens the page of the request with an id. */
function Find() {
  const id = useSignal('')
  const open = (event: Event) => {
    event.preventDefault()
    const text = id.value.trim()
    if (text) navigate(`${BASE}/requests/${encodeURIComponent(text)}`)
  }
  return (
    <form class="find" onSubmit={open}>
      <input
        type="search"
        aria-label="Request id"
        placeholder="req_…, job_… or chatcmpl-…"
        value={id.value}
        onInput={({ currentTarget }) => {
          id.value = currentTarget.value
        }}
      />
      <button type="submit">Find request</button>
    </form>
  )
}

function StatusChips() {
  return (
    <Chips
      label="Status"
      choices={STATUSES}
      value={queryParam('status')}
      onChoose={(status) => setQuery({ ...(status === ACTIVE && NO_FILTERS), status })}
    />
  )
}

/** Filters that are used less often, in a panel over the table. */
function MoreFilters() {
  const count = activeFilters().length
  const close = (panel: HTMLDetailsElement | null) => {
    panel?.removeAttribute('open')
    panel?.querySelector('summary')?.focus()
  }
  const isOpen = useSignal(false)
  return (
    <details
      class="more-filters"
      onToggle={({ currentTarget }) => {
        isOpen.value = currentTarget.open
      }}
      onKeyDown={({ key, currentTarget }) => key === 'Escape' && close(currentTarget)}
      onFocusOut={({ currentTarget, relatedTarget }) => {
        const isInside = relatedTarget === null || currentTarget.contains(relatedTarget as Node)
        if (!isInside) currentTarget.open = false
      }}
    >
      <summary class="button">Filters{count > 0 && ` (${count})`}</summary>
      {/* A click between the fields gives the focus to the panel. Otherwise the focus could leave the filters, which would close them. */}
      <div class="card fields" tabIndex={-1}>
        <FilterFields isOpen={isOpen.value} />
        <button type="button" onClick={({ currentTarget }) => close(currentTarget.closest('details'))}>
          Done
        </button>
      </div>
    </details>
  )
}

/** Filters of the panel that are set, as their names and texts. */
function activeFilters(): { readonly name: string; readonly text: string }[] {
  const texts: Readonly<Record<string, (value: string) => string>> = {
    batch_id: (value) => `Batch: ${value}`,
    batch_lines: (value) => (value === 'true' ? 'With lines of batches' : 'Without lines of batches'),
    project: (value) => `Project: ${projectName(value)}`,
    key: (value) => `API key: ${keyName(value)}`,
    since: (value) => `Since ${timeText(value)}`,
    until: (value) => `Until ${timeText(value)}`,
    min_duration_ms: (value) => (DURATIONS as Readonly<Record<string, string>>)[value] ?? `Over ${value} ms`,
    ...Object.fromEntries(
      Object.entries(FIELDS).map(([name, label]) => [name, (value: string) => `${label}: ${value}`]),
    ),
  }
  return Object.entries(texts).flatMap(([name, textOf]) => {
    const value = queryParam(name)
    return value === '' ? [] : [{ name, text: textOf(value) }]
  })
}

function timeText(seconds: string): string {
  return Number(seconds) > 0 ? dateTimeText(Number(seconds)) : seconds
}

/** Maximum age, in minutes, of the failures from which the filters take the error codes and models that they offer. */
const OFFERED_MINUTES = 7 * 24 * 60

function ActiveFilters() {
  const active = activeFilters()
  if (active.length === 0) return null
  return (
    <ul class="active-filters" aria-label="Active filters">
      {active.map(({ name, text }) => (
        <li key={name}>
          <button type="button" class="chip" onClick={() => setQuery({ [name]: '' })}>
            {text} <span aria-hidden="true">×</span>
            <span class="visually-hidden">Remove this filter</span>
          </button>
        </li>
      ))}
    </ul>
  )
}

function FilterFields({ isOpen }: { readonly isOpen: boolean }) {
  useEffect(() => void loadSuggestions(), [])
  const since = useMemo(() => String(Math.floor(serviceNow() / 60 - OFFERED_MINUTES) * 60), [])
  const { found } = useFailures(isOpen ? { since } : undefined)
  const offer = (values: readonly (string | null)[] = []) => [...new Set(values)].filter((one) => one !== null)
  const offered: Readonly<Record<string, readonly string[]>> = {
    error_code: offer(found?.data.map(({ error_code }) => error_code)),
    model: offer([...modelIds.value, ...(found?.data.map(({ model }) => model) ?? [])]),
    endpoint: jobEndpoints.value,
  }
  return (
    <>
      {Object.entries(FIELDS).map(([name, label]) => (
        <label key={name}>
          <span>{label}</span>
          <input
            type="search"
            list={`known-${name}`}
            autocomplete="off"
            value={queryParam(name)}
            onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value.trim() })}
          />
          <datalist id={`known-${name}`}>
            {(offered[name] ?? []).map((one) => (
              <option key={one} value={one} />
            ))}
          </datalist>
        </label>
      ))}
      {isOperator.value && (
        <>
          <Picker name="project" label="Project" all="All projects" ids={namedProjects.value} nameOf={projectName} />
          <Picker name="key" label="API key" all="All keys" ids={namedKeys.value} nameOf={keyName} />
        </>
      )}
      <Choice name="min_duration_ms" label="Duration" choices={DURATIONS} />
      <Choice name="batch_lines" label="Lines of batches" choices={BATCH_LINES} />
    </>
  )
}

interface PickerProps {
  readonly name: string
  readonly label: string
  /** Text of the choice that removes the filter, such as `All projects`. */
  readonly all: string
  readonly ids: readonly { readonly id: string }[]
  readonly nameOf: (id: string) => string
}

/** A filter for projects or keys, chosen by name. A value in the URL is offered even if it is not in the list. */
function Picker({ name, label, all, ids, nameOf }: PickerProps) {
  const value = queryParam(name)
  return (
    <label>
      <span>{label}</span>
      <select value={value} onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })}>
        <option value="">{all}</option>
        {[...new Set([...ids.map(({ id }) => id), ...(value ? [value] : [])])].map((id) => (
          <option key={id} value={id}>
            {nameOf(id)}
          </option>
        ))}
      </select>
    </label>
  )
}

interface ChoiceProps {
  readonly name: string
  readonly label: string
  readonly choices: Readonly<Record<string, string>>
  /** Query parameters that each choice also sets, such as empty values that remove other filters. */
  readonly clears?: Readonly<Record<string, string>>
}

function Choice({ name, label, choices, clears = {} }: ChoiceProps) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select
        value={queryParam(name)}
        onChange={({ currentTarget }) => setQuery({ ...clears, [name]: currentTarget.value })}
      >
        {Object.entries(choices)
          .toSorted(([a], [b]) => Number(a) - Number(b))
          .map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
      </select>
    </label>
  )
}

function NoRequests({ isFiltered, hasMore }: { readonly isFiltered: boolean; readonly hasMore: boolean }) {
  if (!isFiltered) {
    return (
      <Empty
        title="No requests yet"
        action={
          <a class="button" href={`${BASE}/playground`}>
            Try it in the playground
          </a>
        }
      >
        Each call appears here about a second after its end.
      </Empty>
    )
  }
  return (
    <Empty
      title="No matching requests"
      action={
        <button type="button" onClick={() => setQuery({ ...NO_FILTERS, status: '' })}>
          Remove all filters
        </button>
      }
    >
      {hasMore && 'The newest part of the log has no match. Load more to search further back.'}
    </Empty>
  )
}

function Row({ request }: { readonly request: RequestAnswer }) {
  const { model, endpoint, duration_ms, first_output_ms, input_tokens, output_tokens, cost_usd, ended_at } = request
  const project = request.project_name ?? (request.project && projectName(request.project))
  const key = request.key_name ?? (request.key_id && keyName(request.key_id))
  return (
    <tr>
      <Cell column="Status">
        <Outcome request={request} />
      </Cell>
      <Cell column="Request">
        <Name request={request} />
      </Cell>
      {isOperator.value && (
        <Cell column="Project">
          {project ?? '–'}
          {key && key !== project && <span class="dim below">{key}</span>}
        </Cell>
      )}
      <Cell column="Model">{model ?? '–'}</Cell>
      <Cell column="Endpoint">{endpoint.replace('/v1/', '')}</Cell>
      <Cell column="Tokens">{input_tokens + output_tokens === 0 ? '–' : tokensText(input_tokens, output_tokens)}</Cell>
      <Cell column="Cost">{cost_usd > 0 ? costText(cost_usd) : '–'}</Cell>
      <Cell column="First output">{latencyText(first_output_ms === null ? undefined : first_output_ms / 1_000)}</Cell>
      <Cell column="Duration">{latencyText(duration_ms / 1_000)}</Cell>
      <Cell column="Ended">
        <Age at={ended_at} />
      </Cell>
    </tr>
  )
}

function tokensText(input: number, output: number): string {
  return `${input.toLocaleString('en')} → ${output.toLocaleString('en')}`
}

/** Link to the page of a batch or request: the id, or the beginning of prompt and answer if the bodies are recorded. */
function Name({
  request: { id, batch_id, request_counts, prompt_preview: prompt, answer_preview: answer },
}: {
  readonly request: RequestAnswer
}) {
  if (request_counts && batch_id) return <ShortId id={batch_id} href={`${BASE}/${batchPath(batch_id)}`} />
  const href = `${BASE}/requests/${id}`
  if (prompt === undefined) return <ShortId id={id} href={href} />
  return (
    <a class="row-link preview" href={href} title={[prompt, answer, id].filter(Boolean).join('\n\n')}>
      {prompt}
      {answer && <span class="dim"> → {answer}</span>}
    </a>
  )
}
