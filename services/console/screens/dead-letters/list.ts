import { signal } from '@preact/signals'
import { fetchJson, messageOf } from '#services/console/api/client.ts'
import type { DeadLetter, Page } from '#services/console/api/types.ts'

const PAGE_SIZE = 50
const LETTERS_MAX = 2_000

export interface RequeueResult {
  readonly data: readonly DeadLetter[]
  readonly last_id: string | null
  readonly has_more: boolean
}

export class DeadLetterList {
  readonly letters = signal<readonly DeadLetter[]>([])
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly pool: string
  /** Ids that were discarded on this page. Kept, because a response to an older request can still contain them. */
  readonly #discarded = new Set<string>()
  #last: string | null = null

  /** @param pool Empty: all pools */
  constructor(pool: string) {
    this.pool = pool
  }

  async refresh(abort: AbortSignal): Promise<void> {
    try {
      const page = await this.#page({}, abort)
      // If more new records arrived than a page holds, then some are missing between the pages. The list then starts again from this
      // page.
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

  /** Requeues several dead letters. @param after `last_id` of the previous result, to continue with older ones @throws ApiFailure */
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
