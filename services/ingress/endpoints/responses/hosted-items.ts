import type { HostedTool } from '#schemas/generate.ts'
import type { ItemOf } from '#schemas/responses/request.ts'

/** An input item of a tool that the service or an upstream ran. */
export type HostedItemIn =
  | ({ readonly type: 'code_interpreter_call' } & ItemOf<'code_interpreter_call'>)
  | ({ readonly type: 'web_search_call' } & ItemOf<'web_search_call'>)
  | ({ readonly type: 'file_search_call' } & ItemOf<'file_search_call'>)

export interface HostedTurns {
  readonly name: HostedTool
  readonly input: object
  readonly output: string
}

/** Ids of items of hosted tools: they end with an ordinal, unlike those of OpenAI. */
const HOSTED_ID = /^(ci|ws|fs)_[0-9A-Za-z]{8,64}_\d{1,6}$/

/** Whether the service ran the tool of an item, judged by the form of its id. */
export function isHostedItem(id: string): boolean {
  return HOSTED_ID.test(id)
}

/** An item as a model reads it. If the results are missing, then at least the query is included. */
export function hostedTurns(item: HostedItemIn): HostedTurns {
  switch (item.type) {
    case 'code_interpreter_call': {
      const output = item.outputs?.map(({ type, logs }) => logs ?? `[${type}]`).join('\n') || '[no output]'
      return { name: 'code_interpreter', input: { code: item.code ?? '' }, output }
    }
    case 'web_search_call': {
      const { query, sources } = item.action ?? {}
      const results = item.results?.map(({ url, title, excerpt }) => [title, url, excerpt].filter(Boolean).join('\n'))
      const output = (results ?? sources?.map(({ url }) => url ?? '') ?? []).join('\n\n') || '[no results]'
      return { name: 'web_search', input: { query: query ?? '' }, output }
    }
    case 'file_search_call': {
      const results = item.results?.map(({ filename, text }) => `${filename ?? ''}\n${text ?? ''}`) ?? []
      const query = item.queries?.join(' ') ?? ''
      return { name: 'file_search', input: { query }, output: results.join('\n\n') || '[no results]' }
    }
  }
}
