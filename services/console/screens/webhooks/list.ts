import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import type { Delivery, Page } from '#services/console/api/types.ts'

const PAGE = 50
/** Pages that are asked for at once, again with each look. */
const PAGES_MAX = 10

/** The webhook messages that nobody has received, newest first: as many pages as were asked for. */
export class DeliveryList {
  readonly deliveries = signal<readonly Delivery[]>([])
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly #status: string
  #pages = 1

  /** @param status `pending`, `failed`, or empty for both */
  constructor(status: string) {
    this.#status = status
  }

  /** Asks what there is now. */
  async refresh(abort?: AbortSignal): Promise<void> {
    try {
      const found: Delivery[] = []
      let after: string | null = null
      let hasMore = true
      for (let nth = 0; hasMore && nth < this.#pages; nth++) {
        const page: Page<Delivery> = await this.#page(after, abort)
        found.push(...page.data)
        after = page.last_id
        hasMore = page.has_more
      }
      this.deliveries.value = found
      this.hasMore.value = hasMore && this.#pages < PAGES_MAX
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort?.aborted) this.problem.value = wordsOf(error)
    }
  }

  /** Shows one page more. */
  async more(): Promise<void> {
    this.#pages = Math.min(PAGES_MAX, this.#pages + 1)
    await this.refresh()
  }

  /** Sends a message now. @throws ApiFailure where it was received by then */
  async sendAgain(id: string): Promise<void> {
    await askJson(`/v1/admin/deliveries/${encodeURIComponent(id)}/retry`, { method: 'POST' })
    await this.refresh()
  }

  async #page(after: string | null, signal?: AbortSignal): Promise<Page<Delivery>> {
    const wanted = { ...(this.#status && { status: this.#status }), ...(after && { after }) }
    const query = new URLSearchParams({ limit: String(PAGE), ...wanted })
    return await askJson(`/v1/admin/deliveries?${query}`, signal ? { signal } : {})
  }
}
