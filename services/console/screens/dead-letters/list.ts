import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import type { DeadLetter, Page } from '#services/console/api/types.ts'

const PAGE = 50
/** Letters that a tab keeps: beyond them one narrows to a pool. */
const LETTERS_MAX = 2_000

/** Which letters were put back, or would be. */
export interface Redriven {
  readonly data: readonly DeadLetter[]
  readonly last_id: string | null
  readonly has_more: boolean
}

/** The dead letters of a pool or of all, newest first: as many pages as were asked for. */
export class DeadLetterList {
  readonly letters = signal<readonly DeadLetter[]>([])
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly problem = signal('')
  readonly pool: string
  /** What was asked before one was discarded may be answered after it. */
  readonly #discarded = new Set<string>()
  #last: string | null = null

  /** @param pool Empty: of all pools */
  constructor(pool: string) {
    this.pool = pool
  }

  /** Takes those that are new, and the first page where nothing was known. */
  async refresh(abort: AbortSignal): Promise<void> {
    try {
      const page = await this.#page({}, abort)
      // The list begins anew where more came than a page has: what is between is not known.
      const isGap = page.has_more && !page.data.some(({ id }) => this.letters.value.some((known) => known.id === id))
      if (!this.isLoaded.value || isGap) this.#begin(page)
      else this.#take(page.data)
      this.isLoaded.value = true
      this.problem.value = ''
    } catch (error) {
      if (!abort.aborted) this.problem.value = wordsOf(error)
    }
  }

  /** Takes the next page that has any, as far as one look goes. @throws ApiFailure */
  async more(): Promise<void> {
    const page = await this.#page({ after: this.#last ?? '' })
    this.#goOn(page)
    this.#take(page.data)
  }

  /** Puts one back into its queue. @throws ApiFailure */
  async putBack(id: string): Promise<void> {
    await askJson(`/v1/admin/dead-letters/${id}/redrive`, { method: 'POST' })
  }

  /** Has one shown no more. @throws ApiFailure */
  async discard(id: string): Promise<void> {
    await askJson(`/v1/admin/dead-letters/${id}`, { method: 'DELETE' })
    this.#discarded.add(id)
    this.letters.value = this.letters.value.filter((letter) => letter.id !== id)
  }

  /** Puts letters back into their queues. @param after `last_id` of those before, for older ones. @throws ApiFailure */
  async redrive(max: number, isDry: boolean, after: string | null = null): Promise<Redriven> {
    const body = { max, dry_run: isDry, ...(this.pool && { pool: this.pool }), ...(after !== null && { after }) }
    return await askJson('/v1/admin/dead-letters/redrive', { method: 'POST', body })
  }

  #begin(page: Page<DeadLetter>): void {
    this.letters.value = page.data
    this.#goOn(page)
  }

  #goOn({ last_id, has_more }: Page<DeadLetter>): void {
    this.#last = last_id
    this.hasMore.value = has_more && this.letters.value.length < LETTERS_MAX
  }

  #take(letters: readonly DeadLetter[]): void {
    const all = [...this.letters.value, ...letters].filter(({ id }) => !this.#discarded.has(id))
    const known = new Map(all.map((letter) => [letter.id, letter]))
    this.letters.value = [...known.values()].toSorted((a, b) => Number(b.id) - Number(a.id))
  }

  async #page(more: Readonly<Record<string, string>>, signal?: AbortSignal): Promise<Page<DeadLetter>> {
    const query = new URLSearchParams({ limit: String(PAGE), ...more, ...(this.pool && { pool: this.pool }) })
    return await askJson(`/v1/admin/dead-letters?${query}`, signal ? { signal } : {})
  }
}
