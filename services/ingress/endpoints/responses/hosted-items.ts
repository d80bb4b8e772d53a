import type { HostedTool } from '#schemas/generate.ts'
import type { ItemOf } from '#schemas/responses/request.ts'

/** An item of a tool that the service ran, in the input. */
export type HostedItemIn =
  | ({ readonly type: 'code_interpreter_call' } & ItemOf<'code_interpreter_call'>)
  | ({ readonly type: 'web_search_call' } & ItemOf<'web_search_call'>)
  | ({ readonly type: 'file_search_call' } & ItemOf<'file_search_call'>)

/** The call of a tool and its output, as a model reads them. */
export interface HostedTurns {
  readonly name: HostedTool
  readonly input: object
  readonly output: string
}

/** What an item says to a model: one that is not told what came of a call knows at least what was asked. */
export function hostedTurns(item: HostedItemIn): HostedTurns {
  switch (item.type) {
    case 'code_interpreter_call': {
      const output = item.outputs?.map(({ type, logs }) => logs ?? `[${type}]`).join('\n') || '[no output]'
      return { name: 'code_interpreter', input: { code: item.code ?? '' }, output }
    }
    case 'web_search_call': {
      const { query, sources } = item.action
      const told = item.results?.map(({ url, title, excerpt }) => `${title}\n${url}\n${excerpt}`)
      const output = (told ?? sources?.map(({ url }) => url) ?? []).join('\n\n') || '[no results]'
      return { name: 'web_search', input: { query: query ?? '' }, output }
    }
    case 'file_search_call': {
      const told = item.results?.map(({ filename, text }) => `${filename ?? ''}\n${text ?? ''}`) ?? []
      return {
        name: 'file_search',
        input: { query: item.queries.join(' ') },
        output: told.join('\n\n') || '[no results]',
      }
    }
  }
}
