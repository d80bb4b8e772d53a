import type { JobView } from '#services/cli/client/job.ts'

export interface View {
  readonly sort: Sort
  readonly isReversed: boolean
  /** Number of jobs above the first visible one. */
  readonly offset: number
}

type Order = (one: JobView, other: JobView) => number

const STATUSES = ['in_progress', 'cancelling', 'queued']
/** Orders jobs of one second by id, because ids increase with time. */
const byAge: Order = (one, other) => one.created_at - other.created_at || compare(one.id, other.id)
const byText = (read: (job: JobView) => string | null | undefined): Order => {
  return (one, other) => compare(read(one) ?? '', read(other) ?? '') || byAge(one, other)
}

/** Sort orders, each with its key. */
export const SORTS = {
  status: {
    key: 's',
    order: (one, other) => STATUSES.indexOf(one.status) - STATUSES.indexOf(other.status) || byAge(one, other),
  },
  age: { key: 'a', order: byAge },
  model: { key: 'm', order: byText(({ model }) => model) },
  project: { key: 'p', order: byText(({ project }) => project) },
  endpoint: { key: 'e', order: byText(({ endpoint }) => endpoint) },
} as const satisfies Readonly<Record<string, { readonly key: string; readonly order: Order }>>

export type Sort = keyof typeof SORTS

/** View at the start: running jobs before queued ones, oldest first. */
export const FIRST_VIEW: View = { sort: 'status', isReversed: false, offset: 0 }

const SCROLLS: Readonly<Record<string, number>> = {
  ...{ down: 1, j: 1, up: -1, k: -1 },
  ...{ pagedown: 10, space: 10, pageup: -10, home: Number.NEGATIVE_INFINITY },
}

/** The view after a key press; `name` as in `node:readline`. Unknown keys change nothing. @param jobs Number of jobs */
export function afterKey(view: View, name: string, jobs: number): View {
  if (name === 'r') return { ...view, isReversed: !view.isReversed, offset: 0 }
  const sort = sortNames().find((one) => SORTS[one].key === name)
  if (sort) return { sort, isReversed: false, offset: 0 }
  const step = Object.hasOwn(SCROLLS, name) ? SCROLLS[name] : undefined
  if (step === undefined) return view
  return { ...view, offset: Math.max(0, Math.min(view.offset + step, jobs - 1)) }
}

/** The sorted jobs from the scroll position on. If the list became shorter than this position, then the last job is returned. */
export function sorted(jobs: readonly JobView[], { sort, isReversed, offset }: View): JobView[] {
  const inOrder = jobs.toSorted(SORTS[sort].order)
  if (isReversed) inOrder.reverse()
  return inOrder.slice(Math.min(offset, Math.max(0, jobs.length - 1)))
}

export function keysLine({ sort, isReversed }: View): string {
  const sorts = sortNames().map((name) => `${SORTS[name].key} ${name}${mark(name === sort, isReversed)}`)
  return `q quit · sort: ${sorts.join(' ')} · r reverse · ↑↓`
}

function mark(isSorted: boolean, isReversed: boolean): string {
  return isSorted ? (isReversed ? '↑' : '↓') : ''
}

function sortNames(): Sort[] {
  return Object.keys(SORTS) as Sort[]
}

function compare(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0
}
