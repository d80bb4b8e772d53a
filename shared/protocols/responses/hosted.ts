import type { CodeInterpreterItem } from '#schemas/responses/response.ts'
import type { ItemEvent, OpenItem } from './items.ts'

/** Code that the service runs: all of it is known when it begins, and what came of it at its end. */
export class OpenCode implements OpenItem {
  readonly item: CodeInterpreterItem
  readonly #index: number
  readonly #showsOutputs: boolean

  constructor(
    out: ItemEvent[],
    { id, container_id, code }: Pick<CodeInterpreterItem, 'id' | 'container_id' | 'code'>,
    index: number,
    showsOutputs: boolean,
  ) {
    this.#showsOutputs = showsOutputs
    this.#index = index
    this.item = { id, type: 'code_interpreter_call', status: 'in_progress', code: '', container_id, outputs: null }
    out.push({ type: 'response.output_item.added', output_index: index, item: { ...this.item } })
    this.item.code = code.toWellFormed()
    this.item.status = 'interpreting'
    out.push({ type: 'response.code_interpreter_call.in_progress', ...this.#at })
    if (this.item.code !== '') {
      out.push({ type: 'response.code_interpreter_call_code.delta', ...this.#at, delta: this.item.code })
    }
    out.push(
      { type: 'response.code_interpreter_call_code.done', ...this.#at, code: this.item.code },
      { type: 'response.code_interpreter_call.interpreting', ...this.#at },
    )
  }

  /** Ends it with what came of it. */
  result(out: ItemEvent[], status: CodeInterpreterItem['status'], outputs: Record<string, unknown>[]): void {
    Object.assign(this.item, { status, outputs })
    if (status === 'completed') out.push({ type: 'response.code_interpreter_call.completed', ...this.#at })
    const item = this.#showsOutputs ? this.item : { ...this.item, outputs: null }
    out.push({ type: 'response.output_item.done', output_index: this.#index, item })
  }

  /** Nothing came of it. */
  close(out: ItemEvent[]): void {
    this.result(out, 'incomplete', [])
  }

  get #at() {
    return { item_id: this.item.id, output_index: this.#index }
  }
}
