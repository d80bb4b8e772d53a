import { useSignal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import type { RequestAnswer } from '#schemas/admin/requests.ts'
import { isOperator, Pages } from '#services/console/api/client.ts'
import { ageText, costText, dateTimeText, latencyText, serviceNow } from '#services/console/api/clock.ts'
import { keyName, namedKeys, namedProjects, projectName } from '#services/console/api/names.ts'
import { Cell, Chips, LoadMore, ShortId, Table, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, navigate, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { ActiveRequests } from './active-requests.tsx'
import { Outcome, PATH } from './request.tsx'

/** Value of the filter `status` for calls that have not ended. */
const ACTIVE = 'active'
const REFRESH_INTERVAL_MS = 3_000
const COLUMNS = ['Status', 'Request', 'Model', 'Endpoint', 'Duration', 'First output', 'Tokens', 'Cost', 'Ended']
const NUMBERS = ['Duration', 'First output', 'Tokens', 'Cost', 'Ended']
const OPERATOR_COLUMNS = COLUMNS.toSpliced(2, 0, 'Project')
const STATUSES = [
  { id: ACTIVE, name: 'Running and waiting' },
  { id: '', name: 'All' },
  { id: '2xx', name: 'Completed' },
  { id: 'failed', name: 'Failed' },
  { id: '429', name: 'Rate limited' },
  { id: '5xx', name: 'Server errors' },
  { id: '499', name: 'Cancelled' },
] as const
/** Filters of the URL that are text fields, with their labels. */
const FIELDS = { model: 'Model', endpoint: 'Endpoint', server: 'Server', error_code: 'Error code' } as const
const RANGES = { '': 'Any time', '3600': 'Last hour', '86400': 'Last 24 hours', '604800': 'Last 7 days' } as const
const DURATIONS = { '': 'Any duration', '1000': 'Over 1 s', '10000': 'Over 10 s', '60000': 'Over 1 min' } as const
/** Query that removes all other filters. These filters do not apply to calls that have not ended. */
const NO_FILTERS = Object.fromEntries(
  ['batch_id', 'range', 'min_duration_ms', 'project', 'key', ...Object.keys(FIELDS)].map((name) => [name, '']),
)

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
  const names = ['status', 'batch_id', 'min_duration_ms', 'project', 'key', ...Object.keys(FIELDS)]
  const filters = Object.fromEntries(names.map((name) => [name, queryParam(name)]))
  const range = queryParam('range')
  const key = JSON.stringify([filters, range])
  const list = useMemo(() => {
    const since = Number(range) > 0 ? String(Math.floor(serviceNow() - Number(range))) : ''
    return new Pages<RequestAnswer>(PATH, { ...filters, since })
  }, [key])
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { items, isLoaded, problem } = list
  const isFiltered = range !== '' || Object.values(filters).some((value) => value !== '')
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
      <p class="dim">Ended calls and durable jobs, newest first.</p>
      <div class="filters">
        <Find />
        <Choice name="range" label="Time" choices={RANGES} />
        <MoreFilters />
        <StatusChips />
      </div>
      <ActiveFilters />
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && items.value.length === 0 && (
        <NoRequests isFiltered={isFiltered} hasMore={list.hasMore.value} />
      )}
      {items.value.length > 0 && (
        <Table label="Requests" columns={isOperator.value ? OPERATOR_COLUMNS : COLUMNS} numbers={NUMBERS}>
          {items.value.map((request) => (
            <Row key={`${request.id} ${request.ended_at}`} request={request} />
          ))}
        </Table>
      )}
      {isLoaded.value && <LoadMore list={list} />}
    </section>
  )
}

function countOf({ items, hasMore }: Pages<RequestAnswer>): string {
  const count = items.value.length
  return count === 1 && !hasMore.value ? '1 request' : `${count.toLocaleString()}${hasMore.value ? '+' : ''} requests`
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
  return (
    <details
      class="more-filters"
      onKeyDown={({ key, currentTarget }) => key === 'Escape' && close(currentTarget)}
      onFocusOut={({ currentTarget, relatedTarget }) => {
        const isInside = relatedTarget === null || currentTarget.contains(relatedTarget as Node)
        if (!isInside) currentTarget.open = false
      }}
    >
      <summary class="button">Filters{count > 0 && ` (${count})`}</summary>
      {/* The panel receives the focus of a click between its fields, so that it stays open. */}
      <div class="card fields" tabIndex={-1}>
        <FilterFields />
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
    project: (value) => `Project: ${projectName(value)}`,
    key: (value) => `API key: ${keyName(value)}`,
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

function FilterFields() {
  return (
    <>
      {Object.entries(FIELDS).map(([name, label]) => (
        <label key={name}>
          <span>{label}</span>
          <input
            type="search"
            value={queryParam(name)}
            onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value.trim() })}
          />
        </label>
      ))}
      {isOperator.value && (
        <>
          <Picker name="project" label="Project" all="All projects" ids={namedProjects.value} nameOf={projectName} />
          <Picker name="key" label="API key" all="All keys" ids={namedKeys.value} nameOf={keyName} />
        </>
      )}
      <Choice name="min_duration_ms" label="Duration" choices={DURATIONS} />
    </>
  )
}

interface PickerProps {
  readonly name: string
  readonly label: string
  /** Text of the choice that removes the filter. */
  readonly all: string
  readonly ids: readonly { readonly id: string }[]
  readonly nameOf: (id: string) => string
}

/** A filter for projects or keys, chosen by name. A value in the URL is offered even if it is not in the list. */
function Picker({ name, label, all, ids, nameOf }: PickerProps) {
  const value = queryParam(name)
  return (
    <select
      aria-label={label}
      value={value}
      onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })}
    >
      <option value="">{all}</option>
      {[...new Set([...ids.map(({ id }) => id), ...(value ? [value] : [])])].map((id) => (
        <option key={id} value={id}>
          {nameOf(id)}
        </option>
      ))}
    </select>
  )
}

interface ChoiceProps {
  readonly name: string
  readonly label: string
  readonly choices: Readonly<Record<string, string>>
}

function Choice({ name, label, choices }: ChoiceProps) {
  return (
    <select
      aria-label={label}
      value={queryParam(name)}
      onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })}
    >
      {Object.entries(choices)
        .toSorted(([a], [b]) => Number(a) - Number(b))
        .map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
    </select>
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
  const owner = [
    request.project_name ?? request.project,
    request.key_name ?? (request.key_id && keyName(request.key_id)),
  ].filter(Boolean)
  return (
    <tr>
      <Cell column="Status">
        <span class="outcome">
          <Outcome request={request} />
        </span>
      </Cell>
      <Cell column="Request">
        <Name request={request} />
      </Cell>
      {isOperator.value && (
        <Cell column="Project">
          <Short text={[...new Set(owner)].join(' · ') || '–'} />
        </Cell>
      )}
      <Cell column="Model">
        <Short text={model ?? '–'} />
      </Cell>
      <Cell column="Endpoint">
        <Short text={endpoint.replace('/v1/', '')} />
      </Cell>
      <Cell column="Duration" isNumber>
        {latencyText(duration_ms / 1_000)}
      </Cell>
      <Cell column="First output" isNumber>
        {latencyText(first_output_ms === null ? undefined : first_output_ms / 1_000)}
      </Cell>
      <Cell column="Tokens" isNumber>
        {input_tokens.toLocaleString()} → {output_tokens.toLocaleString()}
      </Cell>
      <Cell column="Cost" isNumber>
        {cost_usd > 0 ? costText(cost_usd) : '–'}
      </Cell>
      <Cell column="Ended" isNumber>
        <span title={dateTimeText(ended_at)}>{ageText(ended_at)}</span>
      </Cell>
    </tr>
  )
}

/** Link to the page of a request: the beginning of its prompt and answer if its bodies are recorded, otherwise its id. */
function Name({
  request: { id, prompt_preview: prompt, answer_preview: answer },
}: {
  readonly request: RequestAnswer
}) {
  const href = `${BASE}/requests/${id}`
  if (prompt === undefined) return <ShortId id={id} href={href} />
  return (
    <a class="row-link short preview" href={href} title={[prompt, answer, id].filter(Boolean).join('\n\n')}>
      {prompt}
      {answer && <span class="dim"> → {answer}</span>}
    </a>
  )
}

/** Text on one line, which ends in an ellipsis if the table is too narrow. */
function Short({ text }: { readonly text: string }) {
  return (
    <span class="short" title={text}>
      {text}
    </span>
  )
}
