import type { HostedTool } from '#schemas/generate.ts'
import type { FoundItem, HostedItem, OutputItem } from '#schemas/responses/response.ts'
import type { ItemEvent, OpenItem } from './items.ts'

export interface HostedStart {
  readonly tool: HostedTool
  /** Id of the item, without the prefix of its type. */
  readonly id: string
  readonly container: string
  readonly input: string
  /** Values of `include` in the request. */
  readonly includes: readonly string[]
}

/** A call of a hosted tool. The input is complete at the start; the result is added at the end. */
export class OpenHosted implements OpenItem {
  readonly item: HostedItem
  readonly #index: number
  readonly #includes: readonly string[]

  constructor(out: ItemEvent[], start: HostedStart, index: number) {
    this.#index = index
    this.#includes = start.includes
    this.item = itemOf(start)
    const { type } = this.item
    out.push(
      { type: 'response.output_item.added', output_index: index, item: visibleItem(this.item, this.#includes) },
      { type: `response.${type}.in_progress`, ...this.#at },
    )
    if (this.item.type === 'code_interpreter_call') this.#code(out, start.input.toWellFormed())
    else {
      this.item.status = 'searching'
      out.push({ type: `response.${type}.searching`, ...this.#at })
    }
  }

  result(out: ItemEvent[], status: 'completed' | 'failed' | 'incomplete', output: Record<string, unknown>[]): void {
    this.item.status = status
    addOutput(this.item, output)
    if (status === 'completed') out.push({ type: `response.${this.item.type}.completed`, ...this.#at })
    const item = visibleItem(this.item, this.#includes)
    out.push({ type: 'response.output_item.done', output_index: this.#index, item })
  }

  close(out: ItemEvent[]): void {
    this.result(out, 'incomplete', [])
  }

  #code(out: ItemEvent[], code: string): void {
    Object.assign(this.item, { code, status: 'interpreting' })
    if (code !== '') out.push({ type: 'response.code_interpreter_call_code.delta', ...this.#at, delta: code })
    out.push(
      { type: 'response.code_interpreter_call_code.done', ...this.#at, code },
      { type: 'response.code_interpreter_call.interpreting', ...this.#at },
    )
  }

  get #at() {
    return { item_id: this.item.id, output_index: this.#index }
  }
}

function itemOf({ tool, id, container, input }: HostedStart): HostedItem {
  const status = 'in_progress'
  const query = input.toWellFormed()
  switch (tool) {
    case 'code_interpreter':
      return { id: `ci_${id}`, type: `${tool}_call`, status, code: '', container_id: container, outputs: null }
    case 'web_search':
      return { id: `ws_${id}`, type: `${tool}_call`, status, action: { type: 'search', query, queries: [query] } }
    case 'file_search':
      return { id: `fs_${id}`, type: `${tool}_call`, status, queries: [query], results: null }
  }
}

function addOutput(item: HostedItem, output: Record<string, unknown>[]): void {
  if (item.type === 'code_interpreter_call') {
    item.outputs = output
    return
  }
  const found = item.status === 'completed' ? (output as unknown as FoundItem[]) : []
  if (item.type === 'web_search_call') {
    item.action.sources = found.map(({ url }) => ({ type: 'url', url }))
    item.results = found
    return
  }
  item.results = found.map(({ url, excerpt: text }, at) => {
    return { file_id: url, filename: url, score: 1 / (at + 1), text, attributes: {} }
  })
}

/**
 * An item reduced to the fields that the caller requested. The stored item has all fields, because a later response may continue the
 * conversation.
 *
 * @param includes Values of `include`, such as `code_interpreter_call.outputs`.
 */
export function visibleItem<Item extends OutputItem>(item: Item, includes: readonly string[]): Item {
  const shows = (name: string) => includes.includes(name)
  if (item.type === 'code_interpreter_call') {
    return shows('code_interpreter_call.outputs') ? { ...item } : { ...item, outputs: null }
  }
  if (item.type === 'file_search_call') {
    return shows('file_search_call.results') ? { ...item } : { ...item, results: null }
  }
  // The search tool of an upstream may report actions other than a search, such as opening a page.
  if (item.type !== 'web_search_call' || !item.action) return item
  const { sources, ...action } = item.action
  const { results, ...shown } = item
  return {
    ...shown,
    action: sources && shows('web_search_call.action.sources') ? item.action : action,
    ...(results && shows('web_search_call.results') && { results }),
  } as Item
}
