import { useSignal } from '@preact/signals'
import type { z } from 'zod'
import type { RequestFailuresListAnswer } from '#schemas/admin/requests.ts'
import { fetchJson, messageOf } from '#services/console/api/client.ts'
import { projectName } from '#services/console/api/names.ts'
import { Count, ErrorText, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'

const REFRESH_INTERVAL_MS = 10_000
const ROWS_MAX = 20
const NUMBERS = ['Requests', 'Oldest', 'Newest']

type Query = Readonly<Record<string, string>>
type FailureList = z.infer<typeof RequestFailuresListAnswer>

/** Failed requests by error code, model and project. Undefined until loaded. @param query If undefined, nothing is loaded @param inputs Values whose change loads the list again */
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

interface FailuresProps {
  readonly query: Query
  /** Filters that the links of the table set on the screen Requests. */
  readonly filters: Query
  readonly hasProjects?: boolean
  /** Whether the numbers of failures by class of status precede the table. */
  readonly hasStatusCounts?: boolean
  readonly inputs?: readonly unknown[]
  /** Text if no request failed. */
  readonly none?: string
}

/** Table of failures, the most frequent first, each with its most frequent message. Each row links to its requests and to the newest of them. */
export function Failures({
  query,
  filters,
  hasProjects = false,
  hasStatusCounts = false,
  inputs = [],
  none = 'No failed requests in this range.',
}: FailuresProps) {
  const { found, problem } = useFailures(query, inputs)
  const columns = ['Error', 'Model', ...(hasProjects ? ['Project'] : []), 'Requests', 'Oldest', 'Newest']
  return (
    <>
      <ErrorText text={problem} />
      {found?.data.length === 0 && <p class="dim">{none}</p>}
      {found && hasStatusCounts && <StatusCounts failures={found.data} />}
      {found && found.data.length > 0 && (
        <Table label="Failures" columns={columns} numbers={NUMBERS} card={{ end: 'Newest', hidden: ['Oldest'] }}>
          {found.data.slice(0, ROWS_MAX).map((row) => {
            const { status, error_code, model, project, project_name, count, newest_id, message } = row
            const own = { ...(error_code && { error_code }), ...(model && { model }), ...(project && { project }) }
            const path = `requests?${new URLSearchParams({ ...filters, ...own, status: String(status) })}`
            return (
              <tr key={JSON.stringify([status, error_code, model, project])}>
                <Cell column="Error">
                  <span class="status failed">{status}</span> {error_code && <code>{error_code}</code>}
                  <span class="dim below">{message}</span>
                </Cell>
                <Cell column="Model">{model ?? '–'}</Cell>
                {hasProjects && (
                  <Cell column="Project">
                    {project_name ?? (project === null ? 'no valid key' : projectName(project))}
                  </Cell>
                )}
                <Cell column="Requests">
                  <Count value={count} path={path} />
                </Cell>
                <Cell column="Oldest">
                  <Age at={row.first_ended_at} />
                </Cell>
                <Cell column="Newest">
                  <a class="figure" href={`${BASE}/requests/${newest_id}`}>
                    <Age at={row.last_ended_at} />
                  </a>
                </Cell>
              </tr>
            )
          })}
        </Table>
      )}
      {found && (found.has_more || found.data.length > ROWS_MAX) && (
        <p class="dim">
          {found.data.length > ROWS_MAX && `The ${ROWS_MAX} most frequent of ${found.data.length} kinds are shown. `}
          {found.has_more && 'Only the newest 100,000 failed requests are counted.'}
        </p>
      )}
    </>
  )
}

/** Failed requests by class of status: rate limits, other errors of the caller, and errors of the service. */
function StatusCounts({ failures }: { readonly failures: FailureList['data'] }) {
  if (failures.length === 0) return null
  const count = (isCounted: (status: number) => boolean) =>
    failures.reduce((sum, row) => sum + (isCounted(row.status) ? row.count : 0), 0).toLocaleString('en')
  return (
    <p>
      Failed requests in the request log: <b>{count((status) => status === 429)}</b> exceeded a rate limit or budget
      (429), <b>{count((status) => status < 500 && status !== 429)}</b> had another error of the caller (4xx), and{' '}
      <b>{count((status) => status >= 500)}</b> failed in the service or at an upstream server (5xx).
    </p>
  )
}
