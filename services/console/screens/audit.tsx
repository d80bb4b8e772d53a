import type { z } from 'zod'
import type { AuditListAnswer } from '#schemas/answers/keys.ts'
import { fetchJson, isOperator } from '#services/console/api/client.ts'
import { dateTimeText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName, projectName } from '#services/console/api/names.ts'
import { ShortId, usePoll } from '#services/console/parts/parts.tsx'
import { queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState, OperatorsOnly, polled } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'
import { durationText } from '#shared/lib/duration.ts'
import { limitName } from './keys/form.tsx'

const REFRESH_INTERVAL_MS = 10_000
/** Number of events that are read, which is the maximum that the API returns. */
const EVENTS_MAX = 1_000
const SHOWN_MAX = 200
const RANGES = { '': 'Any time', '86400': 'Last 24 hours', '604800': 'Last 7 days', '2592000': 'Last 30 days' } as const
const COLUMNS = ['When', 'Who', 'Action', 'Object', 'Change']
const FILTERS = ['range', 'action', 'author', 'project'] as const

type Event = z.infer<typeof AuditListAnswer>['data'][number]
/** A changed field. `before` is undefined if no event in the list has the earlier value. */
interface Change {
  readonly name: string
  readonly before: unknown
  readonly after: unknown
}

const {
  data: events,
  isLoaded,
  problem,
  refresh,
} = polled<readonly Event[]>([], async (signal) => {
  return (await fetchJson<{ data: Event[] }>(`/v1/admin/audit?limit=${EVENTS_MAX}`, { signal })).data
})

export function Audit() {
  return (
    <section class="audit">
      <OperatorsOnly>
        <List />
      </OperatorsOnly>
    </section>
  )
}

function List() {
  usePoll(REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const all = events.value
  const since = queryParam('range') === '' ? 0 : serviceNow() - Number(queryParam('range'))
  const isMatch = (event: Event) =>
    event.at >= since &&
    (['action', 'author', 'project'] as const).every((name) => ['', event[name]].includes(queryParam(name)))
  const shown = all.map((event, nth) => ({ event, nth })).filter(({ event }) => isMatch(event))
  return (
    <>
      <div class="title">
        <h1>Audit log</h1>
        {isLoaded.value && <p class="dim">{shown.length === 1 ? '1 event' : `${shown.length} events`}</p>}
      </div>
      <p class="dim">
        Changes of API keys, projects and webhook secrets, newest first. Pauses, drains and changes of jobs are in the
        log of the service.
      </p>
      <Filters />
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && shown.length === 0 && <NoEvents isFiltered={all.length > 0} />}
      {shown.length > 0 && (
        <Table label="Audit log" columns={COLUMNS} main={['Change']} card={{ title: 'Action', end: 'When' }}>
          {shown.slice(0, SHOWN_MAX).map(({ event, nth }) => (
            <Row key={`${event.at} ${all.length - nth}`} event={event} earlier={all.slice(nth + 1)} />
          ))}
        </Table>
      )}
      {shown.length > SHOWN_MAX && (
        <p class="dim">The newest {SHOWN_MAX} events are shown. Use the filters to see others.</p>
      )}
    </>
  )
}

function Filters() {
  const offer = (name: 'action' | 'author' | 'project') => [
    ...new Set([...events.value.map((event) => event[name] ?? ''), queryParam(name)].filter(Boolean)),
  ]
  return (
    <div class="filters">
      <select
        aria-label="Time"
        value={queryParam('range')}
        onChange={({ currentTarget }) => setQuery({ range: currentTarget.value })}
      >
        {Object.entries(RANGES)
          .toSorted(([a], [b]) => Number(a) - Number(b))
          .map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
      </select>
      <Picker name="author" label="Who" all="Anyone" values={offer('author')} nameOf={authorName} />
      <Picker name="action" label="Action" all="All actions" values={offer('action')} nameOf={actionName} />
      <Picker name="project" label="Project" all="All projects" values={offer('project')} nameOf={projectName} />
    </div>
  )
}

interface PickerProps {
  readonly name: string
  readonly label: string
  /** Text of the choice that removes the filter. */
  readonly all: string
  readonly values: readonly string[]
  readonly nameOf: (value: string) => string
}

function Picker({ name, label, all, values, nameOf }: PickerProps) {
  return (
    <select
      aria-label={label}
      value={queryParam(name)}
      onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })}
    >
      <option value="">{all}</option>
      {values.map((value) => (
        <option key={value} value={value}>
          {nameOf(value)}
        </option>
      ))}
    </select>
  )
}

function NoEvents({ isFiltered }: { readonly isFiltered: boolean }) {
  if (!isFiltered) return <Empty title="No events yet">Changes of keys and projects appear here.</Empty>
  return (
    <Empty
      title="No matching events"
      action={
        <button type="button" onClick={() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, ''])))}>
          Remove all filters
        </button>
      }
    />
  )
}

function Row({ event, earlier }: { readonly event: Event; readonly earlier: readonly Event[] }) {
  const { at, author, action, subject, project } = event
  const changes = changesOf(event, earlier)
  const name = action.startsWith('project.') ? projectName(subject) : keyName(subject)
  return (
    <tr>
      <Cell column="When">
        <Age at={at} />
        <span class="dim below">{dateTimeText(at)}</span>
      </Cell>
      <Cell column="Who">{authorName(author)}</Cell>
      <Cell column="Action">{actionName(action)}</Cell>
      <Cell column="Object">
        {name}
        {name !== subject && (
          <span class="dim below">
            <ShortId id={subject} />
          </span>
        )}
        {project !== null && project !== subject && <span class="dim below">project {projectName(project)}</span>}
      </Cell>
      <Cell column="Change">
        {changes.length === 0
          ? '–'
          : changes.map((change) => (
              <span key={change.name} class="change">
                <span class="dim">{fieldName(change.name)}:</span>{' '}
                {change.before !== undefined && (
                  <>
                    <del>{valueText(change.name, change.before)}</del> →{' '}
                  </>
                )}
                {valueText(change.name, change.after)}
              </span>
            ))}
      </Cell>
    </tr>
  )
}

/**
 * Returns the changed fields of an event. An event contains only the new values, so the value before comes from the newest earlier event of
 * the same object that has the field. Each field inside a nested object, such as `limits`, is compared on its own.
 *
 * @param earlier Events before this event, newest first
 */
export function changesOf(event: Event, earlier: readonly Event[]): readonly Change[] {
  const before = earlier.filter(({ subject }) => subject === event.subject).map(({ change }) => fieldsOf(change))
  return Object.entries(fieldsOf(event.change)).flatMap(([name, after]) => {
    const known = before.find((fields) => Object.hasOwn(fields, name))?.[name]
    return JSON.stringify(known) === JSON.stringify(after) ? [] : [{ name, before: known, after }]
  })
}

function fieldsOf(change: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const fields = Object.entries(change).flatMap(([name, value]): [string, unknown][] => {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    return isObject ? Object.entries(value).map(([inner, one]) => [`${name}.${inner}`, one]) : [[name, value]]
  })
  return Object.fromEntries(fields)
}

/** Labels that are not made from the name of their field. The form for keys and projects has the same labels. */
const FIELDS: Readonly<Record<string, string>> = { expires_at: 'Expires', scopes: 'Permissions' }

/** Returns the label of a field, as in the form for keys and projects. */
export function fieldName(path: string): string {
  const name = path.replace(/^limits\./, '')
  return limitName(name) ?? FIELDS[name] ?? capitalized(name.replaceAll(/[._]/g, ' '))
}

function valueText(path: string, value: unknown): string {
  if (value === null) return 'none'
  if (path === 'project') return projectName(String(value))
  if (typeof value === 'number') {
    if (path.endsWith('_at')) return dateTimeText(value)
    if (path.endsWith('_usd_per_month')) return usdText(value)
    return path.endsWith('_seconds') && value > 0 ? durationText(value) : value.toLocaleString('en')
  }
  if (Array.isArray(value)) return value.join(', ') || 'none'
  return typeof value === 'string' ? value : JSON.stringify(value)
}

/** @param author `key:` and the id of a key, `cli:` and the user of the operating system, or `service` */
function authorName(author: string): string {
  if (author.startsWith('key:')) return keyName(author.slice('key:'.length))
  if (author.startsWith('cli:')) return `${author.slice('cli:'.length)} (command line)`
  return author === 'service' ? 'Service' : author
}

/** Formats an action: `webhook_secret.created` becomes `Webhook secret created`. */
function actionName(action: string): string {
  return capitalized(action.replaceAll(/[._]/g, ' '))
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
