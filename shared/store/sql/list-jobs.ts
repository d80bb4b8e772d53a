import { DurableState } from '#schemas/durable-job.ts'
import type { ListQuery } from '#shared/store/store.ts'
import type { Params } from './sql.ts'
import { JOB_COLUMNS, type Statement } from './statements.ts'

const UNENDED: ReadonlySet<DurableState> = new Set(['queued', 'scheduled', 'in_progress', 'waiting'])

interface Filter {
  readonly name: string
  readonly condition: string
  readonly value: string
}

/**
 * A page of jobs, plus one job if there are further pages.
 *
 * The page is merged from one page per requested state. Each of these pages is a range of an index whose last column is the id,
 * so at most one page per state is read. The conditions repeat the expressions of those indexes (migrations/*-bounded-reads.sql),
 * which prevents the planner from choosing another index or the primary key.
 */
export function listJobs(tenant: string | null, query: ListQuery): { statement: Statement; params: Params } {
  const { order = 'desc', limit } = query
  const filters = filtersOf(tenant, query)
  const asked = [...new Set(query.states?.length ? query.states : DurableState.options)]
  // The states are in a fixed order, so that equal queries have equal statement names.
  const states = [...asked.filter((state) => UNENDED.has(state)), ...asked.filter((state) => !UNENDED.has(state))]
  const unended = asked.filter((state) => UNENDED.has(state)).length
  const pages = states.map((_, i) => pageOf(i, i < unended, filters, query))
  return {
    statement: {
      name: ['list', order, unended, states.length - unended, ...filters.map(({ name }) => name)]
        .concat(query.isOwn ? 'own' : [])
        .join('_'),
      sql: `${pages.join(' UNION ALL ')} ORDER BY id ${order} LIMIT :limit`,
    },
    params: {
      limit: limit + 1,
      ...Object.fromEntries(filters.map(({ name, value }) => [name, value])),
      ...Object.fromEntries(states.map((state, i) => [`state${i}`, state])),
    },
  }
}

function filtersOf(tenant: string | null, { order = 'desc', after, endpoint, parentId }: ListQuery): Filter[] {
  const beyond = order === 'desc' ? '<' : '>'
  const filters: [name: string, value: string | null | undefined, condition: string][] = [
    // With a parent, this condition matches no index of tenants, so that the planner uses the index of parents. Children of one parent
    // have one tenant.
    ['tenant', tenant, parentId === undefined ? 'tenant = :tenant' : 'tenant = coalesce(:tenant, tenant)'],
    // The first condition on the id selects partitions, and the second one limits the range of an index.
    ['after', after, `id ${beyond} :after AND id || '' ${beyond} :after`],
    ['endpoint', endpoint, 'endpoint = :endpoint'],
    ['parent_id', parentId, 'parent_id = :parent_id'],
  ]
  return filters.flatMap(([name, value, condition]) => (typeof value === 'string' ? { name, condition, value } : []))
}

function pageOf(nth: number, isUnended: boolean, filters: readonly Filter[], query: ListQuery): string {
  const conditions = [
    ...filters.map(({ condition }) => condition),
    ...(query.isOwn ? ['depth = 0'] : []),
    notErased(query),
    isUnended ? 'purge_at_ms IS NULL' : 'purge_at_ms > now_ms()',
    `state = :state${nth}`,
  ]
  return `SELECT * FROM (SELECT ${JOB_COLUMNS} FROM jobs WHERE ${conditions.join(' AND ')}
    ORDER BY id || '' ${query.order ?? 'desc'} LIMIT :limit) AS page${nth}`
}

/** Each condition repeats the expression of an index, so that the planner uses this index. */
function notErased({ endpoint, isOwn }: ListQuery): string {
  if (isOwn) return 'coalesce(erased_at_ms, 0) < 1'
  return endpoint === undefined ? 'erased_at_ms IS NULL' : 'coalesce(erased_at_ms, 0) = 0'
}
