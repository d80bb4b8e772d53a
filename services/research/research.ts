import type { ResearchEvent, ResearchRequest } from '#schemas/kinds/research.ts'
import { modelsOf, startWorker } from '#shared/jobs/worker/worker.ts'
import { type AttemptContext, handle } from '#shared/kinds/kind.ts'
import { research } from '#shared/kinds/research/research.ts'
import { search as searchKind } from '#shared/kinds/search/search.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import type { SearchBackend } from '#shared/search/search.ts'
import { type ResearchSetup, runResearch } from './loop.ts'
import { searchOnce } from './search.ts'

/**
 * Starts one worker of the research pool. The worker runs two kinds: `research` (a durable job that ends with a cited report) and `search`
 * (one search with excerpts of the best hits).
 */
export async function startResearch(ports: Ports): Promise<Service> {
  let backends: Promise<SearchBackend[]> | undefined
  const search = () =>
    (backends ??= ports.openSearch().catch((error: unknown) => {
      // The failed attempt is not cached, so the next job opens the backends again.
      backends = undefined
      throw error
    }))
  // Indexing a configured folder may take minutes, so it starts at once. The built-in documents load in a second, on first use.
  if (ports.config.researchCorpus) search().catch(() => {})
  const setupOf = async ({ model }: ResearchRequest, project: string): Promise<ResearchSetup> => {
    const engine = ports.models.find(model)?.engine
    const { writer, embeddings } = engine?.type === 'research' ? engine : {}
    const backends = await search()
    return { backends, writer: writer === undefined ? undefined : { model: writer }, embeddings, project }
  }
  const kinds = {
    research: handle(research, async function* (request, context) {
      yield* researchIn(await setupOf(request, context.tenant), request, context)
    }),
    search: handle(searchKind, async function* (request, { tenant, signal }) {
      yield await searchOnce(await search(), request, tenant, signal)
    }),
  }
  const slots = ports.config.researchSlots
  const definition = {
    name: 'research',
    slots,
    kinds,
    own: () => modelsOf(ports.models.served, { pool: 'research', kinds: ['research', 'search'], slots }),
  } as const
  return await startWorker(ports, definition, async () => {
    await Promise.all(((await backends) ?? []).map((backend) => backend.close()))
  })
}

async function* researchIn(
  setup: ResearchSetup,
  request: ResearchRequest,
  { composition, onProgress, signal }: AttemptContext,
): AsyncGenerator<ResearchEvent> {
  if (!composition) throw new ServiceError('internal_error', 'Research runs only as a durable job.')
  for await (const event of runResearch(setup, request, composition, signal)) {
    if (event.type === 'progress') onProgress?.(progressOf(event))
    yield event
  }
}

function progressOf({ type: _, ...progress }: Extract<ResearchEvent, { type: 'progress' }>) {
  return progress
}
