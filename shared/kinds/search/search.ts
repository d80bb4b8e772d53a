import { SearchRequest, type SearchResults } from '#schemas/kinds/search.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'

export const search: Kind<SearchRequest, SearchResults> = {
  name: 'search',
  pool: 'research',
  request: SearchRequest,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({
    whole([found]) {
      if (found) return found
      throw new ServiceError('internal_error', 'The search worker returned no result.')
    },
  }),
}
