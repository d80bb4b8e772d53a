import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { z } from 'zod'
import type { RequestFailuresListAnswer } from '#schemas/admin/requests.ts'
import { fetchJson, messageOf } from '#services/console/api/client.ts'
import { keyName, projectName } from '#services/console/api/names.ts'
import { Count, ErrorText, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, urlWith } from '#services/console/parts/router.ts'
import { Status } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'

const REFRESH_INTERVAL_MS = 10_000
const ROWS_MAX = 20
const NUMBERS = ['Requests', 'First', 'Last']

type Query = Readonly<Record<string, string>>
export type FailureList = z.infer<typeof RequestFailuresListAnswer>
type FailureRow = FailureList['data'][number]

/** Failed requests by error code, model, project and key. Undefined until loaded. @param query If undefined, nothing is loaded @param inputs Values whose change loads the list again */
export function useFailures(query: Query | undefined, inputs: readonly unknown[] = []) {
  const found = useSignal<FailureList | undefined>(undefined)
  const problem = useSignal('')
  const text = query && new URLSearchParams(query).toString()
  const refresh = async (signal: AbortSignal) => {
    if (text === undefined) return
    try {
      found.value = await fetchJson<FailureList>(`/v1/admin/requests/failures?${text}`, { signal })
      problem.value = ''
    } catch (error) {
      if (!signal.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [text, ...inputs])
  return { found: found.value, problem: problem.value }
}

/** Whether the service or an upstream server failed. The other failed requests were refused, for example by a rate limit or as invalid. */
export function isServerError({ status }: Pick<FailureRow, 'status'>): boolean {
  return status >= 500
}

/** Returns the number of failed requests that the rows count together. */
export function sumOf(rows: readonly FailureRow[]): number {
  return rows.reduce((sum, { count }) => sum + count, 0)
}

interface FailuresProps {
  readonly query: Query
  /** Filters that the links of the table set on the screen Requests. */
  readonly filters: Query
  readonly inputs?: readonly unknown[]
  /** Text if no request failed. */
  readonly none: string
}

export function Failures({ query, filters, inputs = [], none }: FailuresProps) {
  const { found, problem } = useFailures(query, inputs)
  return (
    <>
      <ErrorText text={problem} />
      {found?.data.length === 0 && <p class="dim">{none}</p>}
      {found && found.data.length > 0 && <FailureTable label="Failures" rows={found.data} filters={filters} />}
      {found?.has_more && <p class="dim">{COUNT_ENDED}</p>}
    </>
  )
}

export const COUNT_ENDED =
  'The counts are incomplete: counting ends after the newest 100,000 failed requests or 10,000 rows.'

interface FailureTableProps {
  readonly label: string
  readonly rows: readonly FailureRow[]
  readonly filters: Query
  /**
   * Additional columns that name the caller. If there are any, then the values in these columns and in the column of the model are links
   * that filter the screen. Default: none.
   */
  readonly owners?: readonly ('Project' | 'Key')[]
}

/** Table of failures, the most frequent first, each with its most frequent message. Each row links to its requests and to the newest of them. */
export function FailureTable({ label, rows, filters, owners = [] }: FailureTableProps) {
  return (
    <>
      <Table
        label={label}
        columns={['Error', ...owners, 'Model', ...NUMBERS]}
        numbers={NUMBERS}
        card={{ end: 'Last', hidden: ['First'] }}
      >
        {rows.slice(0, ROWS_MAX).map((row) => {
          const { status, error_code, model, project, key_id, count, newest_id, message } = row
          const named = { error_code, model, project, key: key_id }
          const own = Object.fromEntries(
            Object.entries(named).flatMap(([name, value]) => (value ? [[name, value]] : [])),
          )
          const path = `requests?${new URLSearchParams({ ...filters, ...own, status: String(status) })}`
          return (
            <tr key={JSON.stringify([status, error_code, model, project, key_id])}>
              <Cell column="Error">
                <Status status="failed" text={String(status)} /> {error_code && <code>{error_code}</code>}
                <span class="dim below">{message}</span>
              </Cell>
              {owners.includes('Project') && (
                <Cell column="Project">
                  <Filter name="project" value={project}>
                    {row.project_name ?? projectName(project ?? '')}
                  </Filter>
                </Cell>
              )}
              {owners.includes('Key') && (
                <Cell column="Key">
                  <Filter name="key" value={key_id}>
                    {row.key_name ?? keyName(key_id ?? '')}
                  </Filter>
                </Cell>
              )}
              <Cell column="Model">
                {owners.length === 0 ? (
                  (model ?? '–')
                ) : (
                  <Filter name="model" value={model}>
                    {model}
                  </Filter>
                )}
              </Cell>
              <Cell column="Requests">
                <Count value={count} path={path} />
              </Cell>
              <Cell column="First">
                <Age at={row.first_ended_at} />
              </Cell>
              <Cell column="Last">
                <a class="figure" href={`${BASE}/requests/${newest_id}`}>
                  <Age at={row.last_ended_at} />
                </a>
              </Cell>
            </tr>
          )
        })}
      </Table>
      {rows.length > ROWS_MAX && (
        <p class="dim">
          The {ROWS_MAX} most frequent of {rows.length} kinds are shown.
        </p>
      )}
    </>
  )
}

interface FilterProps {
  readonly name: string
  readonly value: string | null
  readonly children: ComponentChildren
}

/** A link that filters the current screen, or a dash without a value. The back button removes the filter. */
export function Filter({ name, value, children }: FilterProps) {
  return value ? <a href={urlWith({ [name]: value })}>{children}</a> : <>–</>
}
