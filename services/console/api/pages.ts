import { signal } from '@preact/signals'
import { fetchJson, messageOf } from './client.ts'
import type { Page } from './types.ts'

const PAGE_SIZE = 50
/** Maximum number of pages. Limited, because every refresh requests all loaded pages again. */
const PAGES_MAX = 10

/** A paginated list of the API with as many pages as were requested, in the order of the API. */
export class Pages<Item extends { readonly id: string }> {
  readonly items = signal<readonly Item[]>([])
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly #path: string
  readonly #query: Readonly<Record<string, string>>
  #pages = 1

  /** @param query Query parameters; empty ones are omitted */
  constructor(path: string, query: Readonly<Record<string, string>>) {
    this.#path = path
    this.#query = query
  }

  async refresh(abort?: AbortSignal): Promise<void> {
    try {
      // If new items shift others to the next page between two requests, then an id can arrive twice.
      const found = new Map<string, Item>()
      let after = ''
      let isMore = true
      for (let nth = 0; isMore && nth < this.#pages; nth++) {
        const page = await this.#page(after, abort)
        for (const item of page.data) found.set(item.id, item)
        after = page.last_id ?? ''
        isMore = page.has_more && after !== ''
      }
      this.items.value = [...found.values()]
      this.hasMore.value = isMore && this.#pages < PAGES_MAX
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort?.aborted) this.problem.value = messageOf(error)
    }
  }

  async more(): Promise<void> {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 1)
    await this.refresh()
  }

  async #page(after: string, signal?: AbortSignal): Promise<Page<Item>> {
    const params = Object.entries({ limit: String(PAGE_SIZE), ...this.#query, after }).filter(
      ([, value]) => value !== '',
    )
    return await fetchJson(`${this.#path}?${new URLSearchParams(params)}`, signal ? { signal } : {})
  }
}
