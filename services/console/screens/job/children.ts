import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import type { AnyJob, Page } from '#services/console/api/types.ts'

const PAGE = 50
/** Pages of one job's children that a tab shows: the others are in the list of jobs. */
const PAGES_MAX = 10

/** The jobs that one job has others do, as many pages of them as were asked for. */
export class Children {
  readonly jobs = signal<readonly AnyJob[]>([])
  readonly hasMore = signal(false)
  readonly isLoaded = signal(false)
  readonly problem = signal('')
  readonly #url: string
  #pages = 1

  /** @param isOwn They are of the project of the key; else they are seen through the operator's door */
  constructor(id: string, isOwn: boolean) {
    this.#url = `${isOwn ? '/v1/jobs' : '/v1/admin/jobs'}?parent_id=${id}&limit=${PAGE}`
  }

  /** Whether another page may be shown. */
  get canShowMore(): boolean {
    return this.hasMore.value && this.#pages < PAGES_MAX
  }

  /** Takes what is shown once more: their ids have no order in time, so that new ones come anywhere. */
  async refresh(abort?: AbortSignal): Promise<void> {
    try {
      const known = new Map<string, AnyJob>()
      let after = ''
      let hasMore = true
      for (let nth = 0; nth < this.#pages && hasMore; nth++) {
        const page: Page<AnyJob> = await askJson(`${this.#url}${after}`, abort ? { signal: abort } : {})
        for (const job of page.data) known.set(job.id, job)
        hasMore = page.has_more && page.last_id !== null
        after = `&after=${page.last_id}`
      }
      this.jobs.value = [...known.values()].toSorted((a, b) => a.created_at - b.created_at || (a.id < b.id ? -1 : 1))
      this.hasMore.value = hasMore
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort?.aborted) this.problem.value = wordsOf(error)
    }
  }

  /** Shows another page. */
  async more(): Promise<void> {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 1)
    await this.refresh()
  }
}
