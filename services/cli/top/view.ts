import type { JobView } from '#services/cli/client/job.ts'

/** How the person at the keyboard wants to see the jobs. */
export interface View {
  readonly sort: Sort
  readonly isReversed: boolean
  /** Jobs that are scrolled away above. */
  readonly offset: number
}

type Order = (one: JobView, other: JobView) => number

const STATUSES = ['in_progress', 'cancelling', 'queued']
/** Ids grow with time, and tell the order within a second. */
const byAge: Order = (one, other) => one.created_at - other.created_at || compare(one.id, other.id)
const byText = (read: (job: JobView) => string | null | undefined): Order => {
  return (one, other) => compare(read(one) ?? '', read(other) ?? '') || byAge(one, other)
}

/** What jobs may be sorted by, each with its letter on the keyboard. */
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

/** What jobs are sorted by. */
export type Sort = keyof typeof SORTS

/** Jobs that run before those that wait, the oldest first. */
export const FIRST_VIEW: View = { sort: 'status', isReversed: false, offset: 0 }

/** How far each key scrolls, in jobs. */
const SCROLLS: Readonly<Record<string, number>> = {
  ...{ down: 1, j: 1, up: -1, k: -1 },
  ...{ pagedown: 10, space: 10, pageup: -10, home: Number.NEGATIVE_INFINITY },
}

/** The view after a key, by its name in `node:readline`; the same view after a key that means nothing. @param jobs How many there are */
export function afterKey(view: View, name: string, jobs: number): View {
  if (name === 'r') return { ...view, isReversed: !view.isReversed, offset: 0 }
  const sort = sortNames().find((one) => SORTS[one].key === name)
  if (sort) return { sort, isReversed: false, offset: 0 }
  const step = Object.hasOwn(SCROLLS, name) ? SCROLLS[name] : undefined
  if (step === undefined) return view
  return { ...view, offset: Math.max(0, Math.min(view.offset + step, jobs - 1)) }
}

/** The jobs in the order of a view, from its first on: the last one stays in sight where there are fewer by now. */
export function sorted(jobs: readonly JobView[], { sort, isReversed, offset }: View): JobView[] {
  const inOrder = jobs.toSorted(SORTS[sort].order)
  if (isReversed) inOrder.reverse()
  return inOrder.slice(Math.min(offset, Math.max(0, jobs.length - 1)))
}

/** What may be pressed, for the last line. */
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
